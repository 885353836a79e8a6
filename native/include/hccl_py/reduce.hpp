// SPDX-License-Identifier: Apache-2.0
// The arithmetic: one n-way fold per element type and operator, chosen once by the CPU's features.
// Knows nothing of plans or wires.
#pragma once

#include <cstddef>

#include "hccl_py/types.hpp"

namespace hccl_py {

// One operand of a fold. `raw` marks a rank's own contribution, not yet scaled (it matters for AVG only).
struct FoldSource {
  const void* data;
  bool raw;
};

// out[i] = fold of sources[0..num_sources)[i] from left to right, `count` elements. At least one source.
// * float16, bfloat16 and the float8 types accumulate in float32 and round once (to nearest even) at the end.
// * AVG is SUM with every raw source multiplied by `scale` in the accumulation type first (float32; float64 for
//   float64); other operators ignore `scale` and `raw`.
// * MIN and MAX propagate NaN. Integers wrap. bool: SUM and MAX are or, PROD and MIN are and.
// * No fused multiply-add: every variant gives the same bits.
// `out` may be the same memory as any one of the sources (exactly, not shifted); nothing needs alignment.
using FoldFn = void (*)(void* out, const FoldSource* sources, std::size_t num_sources, std::size_t count, double scale);

enum class Isa { portable, avx2, avx512 };

// The best variant this CPU can run.
Isa best_isa();
const char* name_of(Isa isa);
// The kernel for (op, dtype), or nullptr where allowed(op, dtype) is false or the variant is not built in.
FoldFn fold_kernel(ReduceOp op, DType dtype, Isa isa);

// Copies; above the size where they pay, with non-temporal stores.
void copy_bytes(void* out, const void* in, std::size_t bytes);

}  // namespace hccl_py
