// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/shared_fold.hpp"

#include <algorithm>
#include <cstring>

namespace hccl_py {
namespace {

constexpr std::uint64_t kFoldBytes = 8 * 1024;  // what is folded is still in the first-level cache when it is copied

}  // namespace

SharedFold::SharedFold(const Board& board, const Bells& bells, std::uint32_t local, const std::vector<std::uint32_t>& ranks)
    : board_(board), bells_(bells), local_(local), ranks_(ranks), sources_(ranks.size()) {}

void SharedFold::begin(const Call& call, std::uint64_t round) {
  element_ = size_of(call.dtype);
  fold_ = fold_kernel(call.op, call.dtype, best_isa());
  scale_ = 1.0 / board_.num_ranks();
  input_ = call.input;
  output_ = call.output;
  left_ = call.count;
  count_ = std::min<std::uint64_t>(left_, board_.slot_bytes() / element_);
  round_ = round;
  seen_ = 0;
  state_ = State::publishing;
  traffic_ = {};
}

// All but the own share, which nobody else reads.
void SharedFold::publish() {
  std::byte* slot = board_.slot(local_, round_);
  const std::uint64_t before = begin_of(local_) * element_, after = begin_of(local_ + 1) * element_, bytes = count_ * element_;
  if (before != 0) std::memcpy(slot, input_, before);
  if (after != bytes) std::memcpy(slot + after, input_ + after, bytes - after);
  const std::uint64_t moved = bytes - (after - before);
  traffic_.read += moved;
  traffic_.written += moved;
  traffic_.staged += moved;
  board_.rank(local_).published.store(round_ + 1, std::memory_order_release);
  state_ = State::gathering;
}

SharedFold::Outcome SharedFold::advance() {
  for (bool moved = false;; moved = true) {
    switch (state_) {
      case State::publishing:
        publish();
        bells_.ring_others(local_);
        break;
      case State::gathering:
        if (!all(&BoardRank::published)) return moved ? Outcome::moved : Outcome::idle;
        fold_share();
        board_.rank(local_).folded.store(round_ + 1, std::memory_order_release);
        bells_.ring_others(local_);
        state_ = State::sharing;
        break;
      case State::sharing:
        if (!all(&BoardRank::folded)) return moved ? Outcome::moved : Outcome::idle;
        take_shares();
        ++round_;
        input_ += count_ * element_;
        output_ += count_ * element_;
        left_ -= count_;
        count_ = std::min(count_, left_);
        state_ = State::publishing;
        if (left_ == 0) return Outcome::done;
        break;
    }
  }
}

// True once all ranks have done so much in this round.
bool SharedFold::all(std::atomic<std::uint64_t> BoardRank::*done) {
  for (; seen_ < board_.num_ranks(); ++seen_)
    if ((board_.rank(seen_).*done).load(std::memory_order_acquire) <= round_) return false;
  seen_ = 0;
  return true;
}

void SharedFold::fold_share() {
  const std::uint64_t first = begin_of(local_) * element_, bytes = bytes_of(local_);
  std::byte* sums = share_of(local_);
  for (std::uint64_t at = 0; at < bytes; at += kFoldBytes) {
    const std::uint64_t n = std::min(kFoldBytes, bytes - at);
    for (std::uint32_t i = 0; i < sources_.size(); ++i)
      sources_[i] = {(i == local_ ? input_ : board_.slot(i, round_)) + first + at, true};
    fold_(output_ + first + at, sources_.data(), sources_.size(), n / element_, scale_);
    std::memcpy(sums + at, output_ + first + at, n);
  }
  traffic_.read += bytes * (sources_.size() + 1);
  traffic_.written += 2 * bytes;
  traffic_.staged += bytes;
}

void SharedFold::take_shares() {
  for (std::uint32_t distance = 1; distance < board_.num_ranks(); ++distance) {
    const std::uint32_t i = (local_ + distance) % board_.num_ranks();
    const std::uint64_t bytes = bytes_of(i);
    if (bytes == 0) continue;
    std::memcpy(output_ + begin_of(i) * element_, share_of(i), bytes);
    traffic_.read += bytes;
    traffic_.written += bytes;
  }
}

int SharedFold::waiting_for(int only) const {
  for (std::uint32_t i = 0; i < board_.num_ranks(); ++i) {
    const int rank = static_cast<int>(ranks_[i]);
    if (i == local_ || (only >= 0 && rank != only)) continue;
    const BoardRank& peer = board_.rank(i);
    const auto& done = state_ == State::sharing ? peer.folded : peer.published;
    if (done.load(std::memory_order_acquire) <= round_) return rank;
  }
  return -1;
}

}  // namespace hccl_py
