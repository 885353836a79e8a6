// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter, then all-gather, around two ranks.
#include "ring.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "hccl_py/error.hpp"
#include "hccl_py/futex.hpp"
#include "hccl_py/reduce.hpp"

namespace hccl_py::perf {

Ring::Ring(const ShmDoor& door, const BellSocket& bell, const std::vector<std::string>& doors, const std::vector<std::string>& bells,
           int rank, const ShmOptions& options)
    : host_(door, bell, doors, bells, {0, 1}, static_cast<std::uint32_t>(rank), 4711, options, monotonic_ns() + 30'000'000'000),
      to_(host_.send_pipe(static_cast<std::uint32_t>(1 - rank), 0)),
      from_(host_.recv_pipe(static_cast<std::uint32_t>(1 - rank), 0)),
      rank_(rank) {}

// Sends one block and receives another at the same time, folding it with ours if `fold_with` is given.
void Ring::exchange(const std::byte* send, std::size_t send_bytes, const std::byte* fold_with, std::byte* recv, std::size_t recv_bytes,
                    std::size_t segment_bytes) {
  static const FoldFn fold = fold_kernel(ReduceOp::sum, DType::float32, best_isa());
  std::size_t sent = 0, received = 0;
  for (std::uint32_t idle = 0; sent < send_bytes || received < recv_bytes;) {
    bool moved = false;
    if (sent < send_bytes) {
      const std::size_t want = std::min(segment_bytes, send_bytes - sent);
      const std::span<std::byte> room = to_.reserve(want);
      if (room.size() == want) {
        std::memcpy(room.data(), send + sent, want);
        to_.commit(want);
        sent += want;
        moved = true;
      }
    }
    if (received < recv_bytes) {
      const std::size_t want = std::min(segment_bytes, recv_bytes - received);
      const std::span<const std::byte> there = from_.peek(want, 1);
      if (there.size() == want) {
        if (fold_with != nullptr) {
          const FoldSource sources[2] = {{there.data(), true}, {fold_with + received, true}};
          fold(recv + received, sources, 2, want / sizeof(float), 1);
        } else {
          std::memcpy(recv + received, there.data(), want);
        }
        from_.consume(want);
        received += want;
        moved = true;
      }
    }
    if (moved)
      idle = 0;
    else if (++idle < 20000)
      cpu_relax();
    else
      sched_yield();
  }
}

void Ring::all_reduce(const std::byte* in, std::byte* out, std::size_t bytes, std::size_t segment_bytes) {
  const std::size_t half = bytes / sizeof(float) / 2 * sizeof(float), rest = bytes - half;
  const std::size_t begin[2] = {0, half}, length[2] = {half, rest};
  const int mine = rank_, theirs = 1 - rank_;  // the half that we reduce, and the one that we give away
  exchange(in + begin[theirs], length[theirs], in + begin[mine], out + begin[mine], length[mine], segment_bytes);
  exchange(out + begin[mine], length[mine], nullptr, out + begin[theirs], length[theirs], segment_bytes);
}

}  // namespace hccl_py::perf
