// SPDX-License-Identifier: Apache-2.0
// The folds for any CPU: 16-byte vectors (SSE2 on x86-64, NEON on AArch64) in the compiler's own vector types.
#define HCCL_PY_ISA portable
#include "reduce_kernels.hpp"
