// SPDX-License-Identifier: Apache-2.0
// An all-reduce by the board of one host, in pieces of a slot: each rank puts a piece of its INPUT into its slot, folds its
// share of everybody's and leaves the sums in its slot, where the others take them. Two meetings a piece, however many
// ranks there are; a piece is small enough that what one rank writes is in the cache when the next one reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hccl_py/bells.hpp"
#include "hccl_py/board.hpp"
#include "hccl_py/call.hpp"
#include "hccl_py/executor.hpp"
#include "hccl_py/program.hpp"
#include "hccl_py/reduce.hpp"

namespace hccl_py {

class SharedFold {
 public:
  enum class Outcome : std::uint8_t { moved, idle, done };
  // Less would be all meetings and no work.
  static constexpr std::uint32_t kLeastSlotBytes = 4096;

  // True if calls of this program may go this way: the same on all ranks. Two ranks are better off with their rings,
  // where each folds while the other sends.
  static bool fits(const Program& program, const Board& board) {
    return program.shared_fold() && board.num_ranks() == program.header().world && board.num_ranks() > 2 && board.slot_bytes() >= kLeastSlotBytes;
  }

  // `ranks`: of the board, in its order.
  SharedFold(const Board& board, const Bells& bells, std::uint32_t local, const std::vector<std::uint32_t>& ranks);

  // Sets up a run; `round` is the number of pieces that the group has moved before.
  void begin(const Call& call, std::uint64_t round);
  // Puts the first piece into the slot. Nothing of the user's is written.
  void publish();
  bool published() const { return state_ != State::publishing; }
  // Moves on. After all ranks have entered the collective.
  Outcome advance();
  // The number of pieces that the group has moved; once done.
  std::uint64_t round() const { return round_; }
  // The first rank that has not done its part of the piece, or -1; `only`: no other counts.
  int waiting_for(int only = -1) const;
  const Traffic& traffic() const { return traffic_; }

 private:
  enum class State : std::uint8_t { publishing, gathering, sharing };

  bool all(std::atomic<std::uint64_t> BoardRank::*done);
  void fold_share();
  void take_shares();
  std::byte* share_of(std::uint32_t local) const { return board_.slot(local, round_) + begin_of(local) * element_; }
  std::uint64_t begin_of(std::uint32_t local) const { return slot_begin(count_, board_.num_ranks(), local); }
  std::uint64_t bytes_of(std::uint32_t local) const { return (begin_of(local + 1) - begin_of(local)) * element_; }

  Board board_;
  const Bells& bells_;
  std::uint32_t local_;
  std::vector<std::uint32_t> ranks_;
  std::vector<FoldSource> sources_;
  FoldFn fold_ = nullptr;
  double scale_ = 1;
  std::size_t element_ = 1;
  const std::byte* input_ = nullptr;  // of the piece
  std::byte* output_ = nullptr;
  std::uint64_t count_ = 0;  // of the piece
  std::uint64_t left_ = 0;   // elements, with those of the piece
  std::uint64_t round_ = 0;
  std::uint32_t seen_ = 0;  // ranks of the board that are known to have done their part
  State state_ = State::publishing;
  Traffic traffic_;
};

}  // namespace hccl_py
