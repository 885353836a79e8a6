// SPDX-License-Identifier: Apache-2.0
// Whether this process is still the one that made something: without the system call that asking for its id takes.
#pragma once

#include <atomic>
#include <cstdint>

namespace hccl_py {

class Forks {
 public:
  // How often this process and its ancestors forked since watch(): a child sees a larger number than its parent.
  static std::uint32_t count() { return count_.load(std::memory_order_relaxed); }
  // From here on forks are counted. Idempotent.
  static void watch();

 private:
  static inline std::atomic<std::uint32_t> count_{0};
};

}  // namespace hccl_py
