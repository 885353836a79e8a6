// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/placement.hpp"

#include <sched.h>

#include <algorithm>

#include "hccl_py/futex.hpp"

namespace hccl_py {
namespace {

// A move takes tens of microseconds, and may put two ranks together elsewhere, or a rank beside a stranger.
constexpr std::int64_t kShortestPause_ns = 2'000'000, kLongestPause_ns = 100'000'000;

}  // namespace

bool leave_core(std::uint32_t core) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;  // more cores than the set has room for
  cpu_set_t others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return false;
  sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

bool Placement::shares_core(std::uint32_t core) const {
  for (std::uint32_t i = 0; i < local_; ++i)
    if (board_.rank(i).core.load(std::memory_order_relaxed) == core + 1) return true;
  return false;
}

void Placement::spread_out() {
  if (!enabled_) return;
  const int core = sched_getcpu();
  if (core < 0) return;
  BoardRank& mine = board_.rank(local_);
  const auto found = static_cast<std::uint32_t>(core);
  if (mine.core.load(std::memory_order_relaxed) != found + 1) mine.core.store(found + 1, std::memory_order_relaxed);
  if (!shares_core(found)) return;
  const std::int64_t now = monotonic_ns();
  if (now < next_ns_) return;
  // Moves that did not last become rare.
  pause_ns_ = now < next_ns_ + 2 * pause_ns_ ? std::min(2 * pause_ns_, kLongestPause_ns) : kShortestPause_ns;
  next_ns_ = now + pause_ns_;
  if (!leave_core(found)) return;
  ++moves_;
  mine.core.store(static_cast<std::uint32_t>(sched_getcpu()) + 1, std::memory_order_relaxed);
}

}  // namespace hccl_py
