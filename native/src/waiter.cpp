// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/waiter.hpp"

#include <sched.h>

#include <algorithm>

#include "hccl_py/futex.hpp"

namespace hccl_py {
namespace {

// Yields among our own ranks return within microseconds; a stranger keeps the core for a time slice of a millisecond.
constexpr std::int64_t kSlowYields_ns = 1'000'000;
constexpr std::uint32_t kWaitsWithoutYields = 64;
// Where strangers want our cores, who is waited for often does not run: long spins are of no use then and only keep it from
// running. Where nobody does, spins must be longer than a wake-up takes, or ranks that once slept would go on sleeping in
// turns. So spins that find nothing become short, with a long one now and then, and grow again with each that finds something.
constexpr std::uint32_t kShortSpins = 64;
constexpr std::uint32_t kWaitsPerLongSpin = 16;

}  // namespace

void Waiter::reset() {
  if (turns_ == 0) return;
  if (turns_ <= spins_) next_spins_ = std::min(policy_.spins, 2 * spins_);
  spins_ = next_spins_;
  turns_ = 0;
}

bool Waiter::pause() {
  const std::uint32_t turn = turns_++;
  if (turn < spins_) {
    cpu_relax();
    return true;
  }
  if (turn == spins_) next_spins_ = ++vain_ % kWaitsPerLongSpin == 0 ? policy_.spins : std::min(policy_.spins, kShortSpins);
  const std::uint32_t yield_turn = turn - spins_;
  if (yield_turn == 0 && no_yields_for_ != 0) {
    --no_yields_for_;
    turns_ = spins_ + policy_.yields + 1;
    return false;
  }
  if (yield_turn > policy_.yields || policy_.yields == 0) return false;
  if (yield_turn == 0) {
    yields_began_ns_ = monotonic_ns();
  } else if (monotonic_ns() - yields_began_ns_ > kSlowYields_ns) {
    no_yields_for_ = kWaitsWithoutYields;
    turns_ = spins_ + policy_.yields + 1;
    return false;
  }
  if (yield_turn == policy_.yields) return false;
  sched_yield();
  return true;
}

}  // namespace hccl_py
