// SPDX-License-Identifier: Apache-2.0
// Group: one collective after another, from entering it to its end.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>

#include "hccl_py/group.hpp"

namespace hccl_py {
namespace {

using Sequence = std::atomic_ref<std::uint64_t>;

}  // namespace

bool Group::drive_collective() {
  if (current_ == nullptr) {
    if (collectives_.empty()) return false;
    begin(*collectives_.front());
  }
  if (phase_ == Phase::following) {
    if (!follow()) return false;
    settled_ = true;
    enter();
  }
  if (phase_ == Phase::arriving) {
    if (!arrive()) return false;
    if (current_ == nullptr) return true;  // it failed the contract check
    if (slot_call_ != nullptr) {
      fold_slots();
      finish_current();
      return true;
    }
    if (sharing_ && !all_shared()) {
      phase_ = Phase::sharing;
      return drive_shared_fold(true);
    }
    if (contract_) contract_->begin(mine_);
    phase_ = contract_ ? Phase::checking : Phase::ready;
  }
  if (phase_ == Phase::checking) {
    const ContractExchange::Outcome outcome = contract_->advance();
    if (outcome != ContractExchange::Outcome::done) return outcome == ContractExchange::Outcome::moved;
    if (!disagreement_ && contract_->failure()) disagreement_ = contract_->failure();
    if (disagreement_) {
      fail_current(std::move(disagreement_));
      return true;
    }
    phase_ = Phase::ready;
  }
  if (phase_ == Phase::ready) {
    if (!begin_run()) {
      fail_current(current_->executor->failure());
      return true;
    }
    phase_ = Phase::running;
  }
  if (phase_ == Phase::sharing) return drive_shared_fold(false);
  switch (current_->executor->advance()) {
    case Executor::Outcome::moved: return true;
    case Executor::Outcome::idle: return false;
    case Executor::Outcome::done:
      traffic_ = current_->executor->traffic();
      finish_current();
      return true;
    case Executor::Outcome::failed: fail_current(current_->executor->failure()); return true;
  }
  return false;
}

void Group::begin(Op& op) {
  current_ = &op;
  phase_ = Phase::following;
  arrived_ = 0;
  if (disagreement_) disagreement_ = {};
  op.sequence = next_sequence_++;
  slot_call_ = slot_call_of(op);
  mine_ = slot_call_ != nullptr ? slot_call_->contract() : fingerprint_of(op.executor->program().header(), op.call);
  mine_.sequence = op.sequence;
  sharing_ = slot_call_ == nullptr && !remote_ && SharedFold::fits(op.executor->program(), board_) && op.call.count != 0;
  if (settled_) enter();
}

// How the op goes by the board; nullptr if it does not.
SlotCall* Group::slot_call_of(const Op& op) {
  if (op.slot_call != nullptr) return op.slot_call.get();
  const Program& program = op.executor->program();
  const Call& call = op.call;
  if (remote_ || !SlotCall::fits(program, call, board_.slot_bytes())) return nullptr;
  const std::uint64_t mixed = (reinterpret_cast<std::uintptr_t>(&program) >> 6) + call.count * 0x9e3779b97f4a7c15 +
                              static_cast<std::uint64_t>(call.dtype) * 8 + static_cast<std::uint64_t>(call.op);
  std::shared_ptr<SlotCall>& known = slot_calls_[(mixed ^ mixed >> 32) % slot_calls_.size()];
  if (!known || !known->is_of(program, call)) known = std::make_shared<SlotCall>(program, call, local_index_);
  return known.get();
}

// After a mismatch, which ranks leave as soon as they see it: true once all have entered the collective before this one,
// so that nobody still has to read the line and the slot of the one before that.
bool Group::follow() const {
  for (std::uint32_t i = 0; i < board_.num_ranks(); ++i)
    if (i != my_local_ && last_entered(board_.rank(i)) + 1 < mine_.sequence) return false;
  return true;
}

// Enters a collective: says so on the board, with the payload if that goes by the slots.
void Group::enter() {
  phase_ = Phase::arriving;
  BoardRank& mine = board_.rank(my_local_);
  Fingerprint& line = mine.line[mine_.sequence & 1];
  if (slot_call_ != nullptr) {
    slot_call_->publish(current_->call, board_, my_local_, mine_.sequence, rounds_);
  } else {
    if (shm_) find_shared();
    line.segment = lending_.output.segment;
    line.segment_offset = lending_.output.offset;
    mine.write_contract(mine_, mine_.sequence);
    if (sharing_) {
      shared_fold_->begin(current_->call, rounds_);
      if (lending_.output.segment == 0) shared_fold_->publish();  // else the peers may all be able to reach each other's memory
    }
  }
  Sequence(line.sequence).store(mine_.sequence, std::memory_order_release);
  bells_->ring_others(my_local_);
}

// True once all ranks of this host have entered the collective, or it has failed. Nothing of the user's was written yet.
bool Group::arrive() {
  for (; arrived_ < board_.num_ranks(); ++arrived_) {
    if (arrived_ == my_local_) continue;
    Fingerprint& line = board_.rank(arrived_).line[mine_.sequence & 1];
    if (Sequence(line.sequence).load(std::memory_order_acquire) != mine_.sequence) return false;
    if (same_contract(mine_, line)) continue;
    Failure why;
    why.kind = FailureKind::desync;
    why.culprit = static_cast<int>(local_ranks_[arrived_]);
    why.sequence = mine_.sequence;
    why.theirs = line;
    if (contract_) {  // the ranks of other hosts wait for our contract all the same
      if (!disagreement_) disagreement_ = std::move(why);
      continue;
    }
    fail_current(std::move(why));
    return true;
  }
  return true;
}

void Group::fold_slots() {
  slot_call_->fold(current_->call, board_, mine_.sequence, rounds_);
  rounds_ += slot_call_->rounds();
}

// Once all have entered. Memory that all can reach needs no slots: who loads and stores there copies nothing. All see the
// same lines, so all come to the same answer.
bool Group::all_shared() const {
  for (std::uint32_t i = 0; i < board_.num_ranks(); ++i)
    if (board_.rank(i).line[mine_.sequence & 1].segment == 0) return false;
  return true;
}

bool Group::drive_shared_fold(bool moved) {
  const SharedFold::Outcome outcome = shared_fold_->advance();
  if (outcome != SharedFold::Outcome::done) return moved || outcome == SharedFold::Outcome::moved;
  rounds_ = shared_fold_->round();
  traffic_ = shared_fold_->traffic();
  finish_current();
  return true;
}

// Which buffers of the current call lie in memory that the peers can reach.
void Group::find_shared() {
  lending_.input = lending_.output = {};
  if (!own_segments_.any() || options_.shm.shared_from_bytes == 0) return;
  const Call& call = current_->call;
  const ProgramHeader& h = current_->executor->program().header();
  const std::size_t element = size_of(call.dtype);
  const auto place = [&](const std::byte* memory, std::uint64_t bytes) {
    if (memory == nullptr || bytes == 0) return SharedPlace{};
    return own_segments_.find(memory, bytes, [this](std::uint32_t number, int fd) { return shm_->announce(number, fd); });
  };
  lending_.input = place(call.input, elements(h.input_blocks, call.count, call.input_counts) * element);
  lending_.output = place(call.output, elements(h.output_blocks, call.count, call.output_counts) * element);
  if (sharing_ && call.count / world_ * element < options_.shm.shared_from_bytes) lending_.output = {};
}

bool Group::begin_run() {
  if (shm_) {
    PeerSegments& segments = shm_->segments();
    segments.forget_gone();
    bool any = false;
    for (std::uint32_t i = 0; i < board_.num_ranks(); ++i) {
      if (i == my_local_) continue;
      const Fingerprint& line = board_.rank(i).line[mine_.sequence & 1];
      std::byte* landing = nullptr;
      std::size_t bytes = 0;
      if (line.segment != 0) landing = segments.find(i, static_cast<std::uint32_t>(line.segment), bytes);
      if (landing != nullptr && line.segment_offset <= bytes) landing += line.segment_offset;
      landings_[local_ranks_[i]] = landing;
      any |= landing != nullptr;
    }
    lending_.landings = any ? std::span<std::byte* const>(landings_) : std::span<std::byte* const>();
    lending_.shared_bytes = options_.shm.shared_from_bytes;
    lending_.private_bytes = options_.shm.private_from_bytes;
  }
  return current_->executor->begin(current_->call, mine_, lending_);
}

// The op is over: it leaves the queue. Its memory may be gone right after its state has changed.
void Group::retire_current() {
  if (!collectives_.empty() && collectives_.front().get() == current_) {
    collectives_.pop_front();
    pending_.fetch_sub(1, std::memory_order_release);
  }
  current_ = nullptr;
  phase_ = Phase::idle;
}

void Group::finish_current() {
  Op& op = *current_;
  if (collectives_.empty()) {  // the caller's own: nobody else waits for it
    retire_current();
    op.finish();
    return;
  }
  const std::shared_ptr<Op> keep = collectives_.front();
  retire_current();
  op.finish();
  wake_waiters();
}

}  // namespace hccl_py
