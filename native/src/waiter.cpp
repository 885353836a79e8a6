// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/waiter.hpp"

#include <sched.h>

#include "hccl_py/futex.hpp"

namespace hccl_py {
namespace {

// Yields among our own ranks return within microseconds; a stranger keeps the core for a time slice of a millisecond.
constexpr std::int64_t kSlowYields_ns = 1'000'000;
constexpr std::uint32_t kWaitsWithoutYields = 64;

}  // namespace

bool Waiter::pause() {
  const std::uint32_t turn = turns_++;
  if (turn < policy_.spins) {
    cpu_relax();
    return true;
  }
  const std::uint32_t yield_turn = turn - policy_.spins;
  if (yield_turn == 0 && no_yields_for_ != 0) {
    --no_yields_for_;
    turns_ = policy_.spins + policy_.yields + 1;
    return false;
  }
  if (yield_turn > policy_.yields || policy_.yields == 0) return false;
  if (yield_turn == 0) {
    yields_began_ns_ = monotonic_ns();
  } else if (monotonic_ns() - yields_began_ns_ > kSlowYields_ns) {
    no_yields_for_ = kWaitsWithoutYields;
    turns_ = policy_.spins + policy_.yields + 1;
    return false;
  }
  if (yield_turn == policy_.yields) return false;
  sched_yield();
  return true;
}

}  // namespace hccl_py
