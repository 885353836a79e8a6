// SPDX-License-Identifier: Apache-2.0
// Where the ranks of one host run. Ranks that wait for each other in turns can be stuck on one core beside an idle one
// for tens of milliseconds: to the kernel's balancer they look like one task. Whoever waits and sees that it shares the
// core with a rank before it moves away.
#pragma once

#include <cstdint>

#include "hccl_py/board.hpp"

namespace hccl_py {

class Placement {
 public:
  Placement() = default;
  Placement(Board board, std::uint32_t local) : board_(board), local_(local), enabled_(true) {}

  // Called by the thread that waits, before it gives the core away.
  void spread_out();
  std::uint32_t moves() const { return moves_; }

 private:
  bool shares_core(std::uint32_t core) const;

  Board board_;
  std::uint32_t local_ = 0;
  bool enabled_ = false;
  std::uint32_t moves_ = 0;
  std::int64_t next_ns_ = 0;  // not before this time again
  std::int64_t pause_ns_ = 0;
};

// Moves the calling thread to another of the cores it may use; false if there is none.
bool leave_core(std::uint32_t core);

}  // namespace hccl_py
