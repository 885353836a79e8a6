// SPDX-License-Identifier: Apache-2.0
// How a rank waits: it spins, then yields, then sleeps. With enough cores spinning is fastest; with more ranks than
// cores it stops the one who is waited for, so yielding comes first; and where yields keep costing whole time slices
// (CPU-bound strangers on our cores) sleeping at once is best.
#pragma once

#include <cstdint>

namespace hccl_py {

struct WaitPolicy {
  std::uint32_t spins = 1000;
  std::uint32_t yields = 32;

  // The default for `ranks` ranks on this host and `cpus` usable processors.
  static WaitPolicy choose(std::uint32_t ranks, std::uint32_t cpus) {
    return ranks <= cpus ? WaitPolicy{1000, 32} : WaitPolicy{0, 32};
  }
  // Where each look costs a system call: about as long as a wake-up takes. Longer is of no use, and keeps the core from
  // the kernel's own threads that bring the bytes.
  // With a core to spare for those it may be somewhat longer.
  WaitPolicy with_wires(std::uint32_t ranks, std::uint32_t cpus) const { return {ranks < cpus ? spins / 4 : spins / 8, yields}; }
};

class Waiter {
 public:
  explicit Waiter(WaitPolicy policy) : policy_(policy), spins_(policy.spins), next_spins_(policy.spins) {}
  // Something moved: begin anew.
  void reset();
  // Spins or yields once; false when it is time to sleep.
  bool pause();
  // True right after the last spin.
  bool spun_out() const { return turns_ == spins_ + 1; }

 private:
  WaitPolicy policy_;
  std::uint32_t spins_;       // of this wait
  std::uint32_t next_spins_;  // of the next
  std::uint32_t vain_ = 0;    // spins that found nothing
  std::uint32_t turns_ = 0;
  std::uint32_t no_yields_for_ = 0;     // waits that go to sleep without yielding
  std::int64_t yields_began_ns_ = 0;
};

}  // namespace hccl_py
