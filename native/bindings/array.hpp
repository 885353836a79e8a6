// SPDX-License-Identifier: Apache-2.0
// What the engine sees of a Python array.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace hccl_py {

struct Array {
  void* data = nullptr;
  std::uint64_t count = 0;
  int dtype = -1;  // DType, or -1
  bool contiguous = false;
  bool readonly = false;
  bool on_host = false;
};

// Through DLPack or the buffer protocol; false if the object gives no memory.
bool look_at(nanobind::handle object, Array& array);

}  // namespace hccl_py
