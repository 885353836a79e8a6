// SPDX-License-Identifier: Apache-2.0
// The folds with 32-byte vectors. Built with -mavx2 -mfma -mf16c; nothing here may run before best_isa() said so.
#if defined(__x86_64__)
#define HCCL_PY_ISA avx2
#include "reduce_kernels.hpp"
#endif
