// SPDX-License-Identifier: Apache-2.0
// The block codecs and the lossless one, built with the flags of reduce_avx512.cpp.
#if defined(__x86_64__)
#define HCCL_PY_ISA avx512
#include "blocks.hpp"
#include "lossless.hpp"
#endif
