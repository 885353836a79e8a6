// SPDX-License-Identifier: Apache-2.0
// Looks up a fold among the variants that are built in: reduce_portable.cpp, and on x86-64 reduce_avx2.cpp and
// reduce_avx512.cpp. All three are the templates of reduce_kernels.hpp, compiled with different flags.
#include "hccl_py/reduce.hpp"

namespace hccl_py {

namespace portable {
FoldFn kernel(ReduceOp op, DType dtype);
}
#if defined(__x86_64__)
namespace avx2 {
FoldFn kernel(ReduceOp op, DType dtype);
}
namespace avx512 {
FoldFn kernel(ReduceOp op, DType dtype);
}
#endif

FoldFn fold_kernel(ReduceOp op, DType dtype, Isa isa) {
  switch (isa) {
    case Isa::portable:
      return portable::kernel(op, dtype);
    case Isa::avx2:
#if defined(__x86_64__)
      return avx2::kernel(op, dtype);
#else
      return nullptr;
#endif
    case Isa::avx512:
#if defined(__x86_64__)
      return avx512::kernel(op, dtype);
#else
      return nullptr;
#endif
  }
  return nullptr;
}

}  // namespace hccl_py
