// SPDX-License-Identifier: Apache-2.0
// The folds once more, element by element and by definition: float64 arithmetic rounded to float32 after every step,
// and codes of small floats found by search. Slow, and shares nothing with the kernels but the list of types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hccl_py/reduce.hpp"

namespace hccl_py::testing {

// The variants of the kernels that this CPU can run, `portable` first.
std::vector<Isa> variants();

bool is_float(DType dtype);
bool is_small_float(DType dtype);  // 8 or 16 bits

// The value of one small float.
float decode(DType dtype, std::uint32_t code);
// The code of the small float nearest to `value`, the even one of two. A NaN becomes the quiet NaN of its sign.
std::uint32_t encode(DType dtype, float value);
// True if the element at `data` is a NaN.
bool is_nan(DType dtype, const void* data);

// What fold_kernel(op, dtype, ...) must give; NaNs may have other payloads.
void reference_fold(ReduceOp op, DType dtype, void* out, const FoldSource* sources, std::size_t num_sources,
                    std::size_t count, double scale);

}  // namespace hccl_py::testing
