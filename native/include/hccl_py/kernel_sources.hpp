// SPDX-License-Identifier: Apache-2.0
// The sources of the exchange kernels, by file name, for the compiler at run time.
#pragma once

#include <array>

namespace hccl_py {

struct KernelSource {
  const char* name;
  const char* text;
};

extern const std::array<KernelSource, 5> kKernelSources;

}  // namespace hccl_py
