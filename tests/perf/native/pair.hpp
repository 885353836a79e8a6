// SPDX-License-Identifier: Apache-2.0
// What the programs of this folder share: two processes, memory that both see, and a barrier between them.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hccl_py/futex.hpp"

namespace hccl_py::perf {

constexpr std::size_t kLargest = 64u << 20;  // bytes of a buffer

// Memory that a child made by fork() shares; its pages come at first touch.
inline std::byte* shared_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  return static_cast<std::byte*>(memory);
}

// Two processes meet here: a line for each says how often it has come.
struct Meeting {
  struct alignas(64) Line {
    std::atomic<std::uint64_t> came{0};
  };
  Line lines[2];

  void wait(int rank) {
    const std::uint64_t mine = lines[rank].came.load(std::memory_order_relaxed) + 1;
    lines[rank].came.store(mine, std::memory_order_release);
    for (std::uint32_t spins = 0; lines[1 - rank].came.load(std::memory_order_acquire) < mine;)
      if (++spins < 20000)
        cpu_relax();
      else
        sched_yield();  // the other has no core
  }
};

// Buffers of both processes that both can load and store: what registered memory is at best.
struct SharedBuffers {
  std::byte* input[2];
  std::byte* output[2];

  static SharedBuffers make() {
    SharedBuffers all{};
    for (int r = 0; r < 2; ++r) {
      all.input[r] = shared_memory(kLargest);
      all.output[r] = shared_memory(kLargest);
    }
    return all;
  }
};

// The limit: a float32 all-reduce of shared buffers with nothing around it. Each process folds its half: two loads and
// two stores an element; meetings before and after. `stream`: stores go past the caches.
void limit_all_reduce(const SharedBuffers& buffers, Meeting& meeting, int rank, std::size_t bytes, bool in_place, bool stream);

}  // namespace hccl_py::perf
