// SPDX-License-Identifier: Apache-2.0
// Executor: how bytes are received, folded and put where they belong.
#include <algorithm>
#include <cstring>

#include "hccl_py/executor.hpp"
#include "hccl_py/stream.hpp"

namespace hccl_py {
namespace {

constexpr std::size_t kTakeBytes = 256 * 1024;           // what is taken from a peer's memory in one go

// A system call is worth more bytes than a look at shared memory: what one receives, and folds at a time (that from a
// buffer which stays in the cache).
constexpr std::size_t kWireReceive = 512 * 1024;
constexpr std::size_t kWireFold = 128 * 1024;

}  // namespace

// Folds or receives the next segment of a step.
bool Executor::make(RunStep& step, std::size_t i, std::uint64_t upto) {
  bool ready = true;
  for (RunOperand& source : step.sources) {
    if (source.recv == nullptr) continue;
    ready &= open(source, i, step.bytes);
    if (failure_) return false;
  }
  if (!ready) return false;
  const bool taken_whole = step.sources.size() == 1 && step.sources[0].way == Way::lent;
  std::size_t piece = segment_bytes_;
  if (taken_whole) piece = std::max(piece, kTakeBytes);
  if (step.wire) piece = std::max(piece, step.sources.size() == 1 ? kWireReceive : kWireFold);
  const std::size_t want = std::min<std::uint64_t>(upto - step.made, piece);
  if (step.shape == Shape::make_peer) {
    RunOperand& target = step.targets[0];
    if (target.send->turn != target.ordinal || (want == 0 && step.bytes != 0)) return false;
    if (target.head_left != 0) {  // the header goes first; of an empty message it is all there is
      Head head;
      const std::size_t taken = target.send->pipe->write(encode_head(target, step.bytes, head), {}, true);
      target.head_left -= static_cast<std::uint32_t>(taken);
      touched_ |= taken != 0;
      if (target.head_left != 0) return taken != 0;
      if (step.bytes == 0) ++target.send->turn;
    }
    if (want == 0) return true;
    const std::span<std::byte> room = target.send->pipe->reserve(want);
    const std::size_t n = room.empty() ? 0 : fold_segment(step, std::min(want, room.size()), room.data());
    if (n == 0) {
      if (room.empty() && target.send->pipe->state() != PipeState::open)
        fail(FailureKind::peer_lost, static_cast<int>(target.send->peer), i, "the connection broke while sending");
      return false;
    }
    target.send->pipe->commit(n);
    traffic_.staged += n;
    target.moved += n;
    step.made += n;
    if (target.moved == step.bytes) ++target.send->turn;
    return true;
  }
  if (want == 0) return false;
  std::byte* out = step.local_target->memory + step.made;
  if (step.sources.size() == 1) {  // a plain receive, straight to where it belongs
    RunOperand& source = step.sources[0];
    const bool landed = source.way == Way::landed;
    const std::size_t n = landed ? std::min<std::uint64_t>(want, source.recv->pipe->arrived()) : source.recv->pipe->read({out, want});
    if (landed && n != 0) source.recv->pipe->consume(n);
    if (!landed) traffic_.read += n;
    if (!landed) traffic_.written += n;
    if (n == 0 && source.recv->pipe->state() != PipeState::open)
      fail(FailureKind::peer_lost, static_cast<int>(source.recv->peer), i, "the connection was closed");
    if (n == 0) return false;
    touched_ = true;
    source.moved += n;
    step.made += n;
    if (source.moved == step.bytes) ++source.recv->turn;
    return true;
  }
  const std::size_t n = step.landing ? fold_and_land(step, want) : fold_segment(step, want, out);
  step.made += n;
  touched_ |= n != 0;
  return n != 0;
}

// Folds in pieces that stay in the cache, and puts each where the peers want it before the next.
std::size_t Executor::fold_and_land(RunStep& step, std::size_t want) {
  const auto i = static_cast<std::size_t>(&step - steps_.data());
  for (RunOperand& target : step.targets)
    if (target.send != nullptr && !open_loan(target, i, step.bytes)) return 0;
  const std::size_t n = gather(step, want);
  auto* staging = reinterpret_cast<std::byte*>(fold_staging_.data());
  for (std::size_t at = 0; at < n;) {
    const std::size_t piece = std::min(n - at, kLandBytes);
    std::byte* out = step.stream_past ? staging : step.local_target->memory + step.made + at;
    fold_(out, fold_sources_.data(), step.sources.size(), piece / element_, scale_);
    for (std::size_t k = 0; k < step.sources.size(); ++k)
      fold_sources_[k].data = static_cast<const std::byte*>(fold_sources_[k].data) + piece;
    for (std::size_t k = 0; k < step.targets.size(); ++k) {
      const RunOperand& target = step.targets[k];
      std::byte* to = (target.send != nullptr ? target.landing : target.memory) + step.made + at;
      if (step.stream_past)
        stream_bytes(to, out, piece, k < step.sources.size() ? fold_sources_[k].data : nullptr);
      else if (target.send != nullptr)
        std::memcpy(to, out, piece);
    }
    at += piece;
  }
  if (n == 0) return 0;
  if (step.stream_past) stream_fence();
  const std::uint64_t others = step.targets.size() - 1;
  traffic_.read += n * (step.sources.size() + others);
  traffic_.written += n * (1 + others);
  take(step, n);
  for (RunOperand& target : step.targets) {
    if (target.send == nullptr) continue;
    target.moved += n;
    target.send->pipe->offer(target.base + target.moved);
    if (target.moved == step.bytes) ++target.send->turn;
  }
  return n;
}

// Folds as many whole elements as all sources have, at most `want` bytes; takes them from their pipes.
std::size_t Executor::fold_segment(RunStep& step, std::size_t want, std::byte* out) {
  const std::size_t n = gather(step, want);
  if (n == 0) return 0;
  fold_(out, fold_sources_.data(), step.sources.size(), n / element_, scale_);
  traffic_.read += n * step.sources.size();
  traffic_.written += n;
  take(step, n);
  return n;
}

// Finds the next bytes of all sources: how many whole elements' worth there are, at most `want`.
std::size_t Executor::gather(RunStep& step, std::size_t want) {
  const std::span<const Operand> plan = program_.sources(program_.steps()[static_cast<std::size_t>(&step - steps_.data())]);
  std::size_t n = want;
  for (std::size_t k = 0; k < step.sources.size(); ++k) {
    RunOperand& source = step.sources[k];
    fold_sources_[k].raw = plan[k].raw != 0;
    if (source.recv == nullptr) {
      fold_sources_[k].data = source.memory + step.made;
      continue;
    }
    const std::span<const std::byte> in = source.recv->pipe->peek(want, std::min(want, element_));
    if (in.empty() && source.recv->pipe->state() != PipeState::open) {
      fail(FailureKind::peer_lost, static_cast<int>(source.recv->peer), static_cast<std::size_t>(&step - steps_.data()),
           "the connection was closed");
      return 0;
    }
    n = std::min(n, in.size());
    fold_sources_[k].data = in.data();
  }
  return n - n % element_;
}

// `bytes` of all sources have been folded.
void Executor::take(RunStep& step, std::size_t bytes) {
  for (RunOperand& source : step.sources) {
    if (source.recv == nullptr) continue;
    if (source.way == Way::lent && source.place.segment == 0) {  // the pipe has staged it
      traffic_.read += bytes;
      traffic_.written += bytes;
      traffic_.staged += bytes;
    }
    source.recv->pipe->consume(bytes);
    source.moved += bytes;
    if (source.moved == step.bytes) ++source.recv->turn;
  }
}

}  // namespace hccl_py
