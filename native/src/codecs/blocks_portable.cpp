// SPDX-License-Identifier: Apache-2.0
// The block codecs and the lossless one, built with the flags of reduce_portable.cpp.
#define HCCL_PY_ISA portable
#include "blocks.hpp"
#include "lossless.hpp"
