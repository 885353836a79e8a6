// SPDX-License-Identifier: Apache-2.0
// The words that cross every border: collectives, element types, reduction operators.
// Names and numbers are those of hccl_py/core/types.py; tests/architecture/test_enum_parity.py compares them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccl_py {

#define HCCL_PY_COLLECTIVES(X) \
  X(all_reduce, 0) X(reduce, 1) X(broadcast, 2) X(all_gather, 3) X(reduce_scatter, 4) \
  X(all_to_all, 5) X(gather, 6) X(scatter, 7) X(barrier, 8)

#define HCCL_PY_DTYPES(X) \
  X(float64, 0, 8) X(float32, 1, 4) X(float16, 2, 2) X(bfloat16, 3, 2) X(float8_e4m3, 4, 1) X(float8_e5m2, 5, 1) \
  X(int8, 6, 1) X(int16, 7, 2) X(int32, 8, 4) X(int64, 9, 8) \
  X(uint8, 10, 1) X(uint16, 11, 2) X(uint32, 12, 4) X(uint64, 13, 8) X(bool_, 14, 1)

#define HCCL_PY_REDUCE_OPS(X) \
  X(sum, 0) X(avg, 1) X(prod, 2) X(min, 3) X(max, 4) X(band, 5) X(bor, 6) X(bxor, 7)

enum class Collective : std::uint8_t {
#define X(name, number) name = number,
  HCCL_PY_COLLECTIVES(X)
#undef X
};

enum class DType : std::uint8_t {
#define X(name, number, size) name = number,
  HCCL_PY_DTYPES(X)
#undef X
};

enum class ReduceOp : std::uint8_t {
#define X(name, number) name = number,
  HCCL_PY_REDUCE_OPS(X)
#undef X
};

constexpr int kNumCollectives = 9;
constexpr int kNumDTypes = 15;
constexpr int kNumReduceOps = 8;

const char* name_of(Collective collective);
const char* name_of(DType dtype);
const char* name_of(ReduceOp op);

// Bytes of one element.
std::size_t size_of(DType dtype);
// AVG on floats only, bitwise on integers and bool only.
bool allowed(ReduceOp op, DType dtype);
// True if the collective combines elements.
bool reduces(Collective collective);

}  // namespace hccl_py
