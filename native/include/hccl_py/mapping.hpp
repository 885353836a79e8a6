// SPDX-License-Identifier: Apache-2.0
// Owns a memory mapping.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace hccl_py {

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* memory, std::size_t bytes) : memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  std::byte* get() const { return memory_; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hccl_py
