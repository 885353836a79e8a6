// SPDX-License-Identifier: Apache-2.0
// Names, sizes and rules of collectives, element types and operators (see types.hpp).
#include "hccl_py/types.hpp"

namespace hccl_py {

const char* name_of(Collective collective) {
  switch (collective) {
#define X(name, number) \
  case Collective::name: \
    return #name;
    HCCL_PY_COLLECTIVES(X)
#undef X
  }
  return "unknown collective";
}

const char* name_of(DType dtype) {
  if (dtype == DType::bool_) return "bool";  // the enumerator has an underscore because bool is a keyword
  switch (dtype) {
#define X(name, number, size) \
  case DType::name: \
    return #name;
    HCCL_PY_DTYPES(X)
#undef X
  }
  return "unknown dtype";
}

const char* name_of(ReduceOp op) {
  switch (op) {
#define X(name, number) \
  case ReduceOp::name: \
    return #name;
    HCCL_PY_REDUCE_OPS(X)
#undef X
  }
  return "unknown op";
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
#define X(name, number, size) \
  case DType::name: \
    return size;
    HCCL_PY_DTYPES(X)
#undef X
  }
  return 0;
}

bool allowed(ReduceOp op, DType dtype) {
  const bool is_float = dtype <= DType::float8_e5m2;
  switch (op) {
    case ReduceOp::avg:
      return is_float;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return !is_float;
    case ReduceOp::sum:
    case ReduceOp::prod:
    case ReduceOp::min:
    case ReduceOp::max:
      return true;
  }
  return false;
}

bool reduces(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      return true;
    case Collective::broadcast:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter:
    case Collective::barrier:
      return false;
  }
  return false;
}

}  // namespace hccl_py
