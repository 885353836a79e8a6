// SPDX-License-Identifier: Apache-2.0
// The folds with 64-byte vectors. Built with -mavx512{f,bw,vl,dq} on top of the flags of reduce_avx2.cpp.
#if defined(__x86_64__)
#define HCCL_PY_ISA avx512
#include "reduce_kernels.hpp"
#endif
