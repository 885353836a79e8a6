// SPDX-License-Identifier: Apache-2.0
// Executor: how one message begins and goes, by its pipe or by loan, and what is checked of its header.
#include <algorithm>
#include <array>
#include <cstring>

#include "hccl_py/executor.hpp"

namespace hccl_py {
namespace {

// A system call is worth more bytes than a look at shared memory.
constexpr std::size_t kWireSend = 256 * 1024;

}  // namespace

// The first message to or from another host carries the contract check.
std::uint32_t Executor::head_bytes(bool remote, std::uint32_t ordinal) {
  return static_cast<std::uint32_t>(kFrameHeaderBytes + (kCheckContract && remote && ordinal == 0 ? kFingerprintBytes : 0));
}

// What is left to send of a message's header, written into `head`.
std::span<const std::byte> Executor::encode_head(const RunOperand& target, std::uint64_t total, Head& head) const {
  if (target.head_left == 0) return {};
  const SendPort& port = *target.send;
  const std::uint32_t size = head_bytes(port.remote, target.ordinal);
  FrameHeader header;
  header.kind = FrameKind::collective;
  header.flags = size > kFrameHeaderBytes ? kFrameHasFingerprint : 0;
  if (target.way == Way::landed) header.flags |= kFrameLanded;
  if (target.way == Way::lent) {
    header.flags |= kFrameLent;
    header.segment = target.place.segment;
    header.offset = target.place.offset;
  }
  header.communicator = communicator_;
  header.sequence_or_tag = mine_.sequence;
  header.plan_digest = mine_.plan_digest;
  header.channel = port.channel;
  header.step = target.ordinal;
  header.length = total;
  encode(header, std::span<std::byte, kFrameHeaderBytes>(head.data(), kFrameHeaderBytes));
  if (size > kFrameHeaderBytes)
    encode(mine_, std::span<std::byte, kFingerprintBytes>(head.data() + kFrameHeaderBytes, kFingerprintBytes));
  return std::span<const std::byte>(head.data(), size).last(target.head_left);
}

// Sends header and payload of one message as far as `upto` and the pipe allow.
bool Executor::push(RunOperand& target, std::size_t step, const std::byte* memory, std::uint64_t upto, std::uint64_t total) {
  SendPort& port = *target.send;
  if (port.turn != target.ordinal) return false;
  if (target.moved == upto && (target.head_left == 0 || total != 0)) return false;
  Head head;
  const std::span<const std::byte> head_rest = encode_head(target, total, head);
  const std::uint64_t want = std::min<std::uint64_t>(upto - target.moved, port.remote ? std::max(segment_bytes_, kWireSend) : segment_bytes_);
  const std::size_t taken = port.pipe->write(head_rest, {memory + target.moved, want}, target.moved + want < upto);
  if (taken == 0) {
    if (port.pipe->state() != PipeState::open)
      fail(FailureKind::peer_lost, static_cast<int>(port.peer), step, "the connection broke while sending");
    return false;
  }
  const std::uint32_t of_head = static_cast<std::uint32_t>(std::min<std::size_t>(taken, target.head_left));
  target.head_left -= of_head;
  target.moved += taken - of_head;
  traffic_.read += taken - of_head;
  traffic_.written += taken - of_head;
  traffic_.staged += taken - of_head;
  touched_ = true;
  if (target.head_left == 0 && target.moved == total) ++port.turn;
  return true;
}

// Sends the header of a message that goes by loan; true once that is done and it is this message's turn.
bool Executor::open_loan(RunOperand& target, std::size_t step, std::uint64_t total) {
  SendPort& port = *target.send;
  if (port.turn != target.ordinal) return false;
  if (target.head_left == 0) return true;
  Head head;
  const std::size_t taken = port.pipe->write(encode_head(target, total, head), {}, true);
  target.head_left -= static_cast<std::uint32_t>(taken);
  touched_ |= taken != 0;
  if (taken == 0 && port.pipe->state() != PipeState::open)
    fail(FailureKind::peer_lost, static_cast<int>(port.peer), step, "the connection broke while sending");
  if (target.head_left != 0) return false;
  target.base = port.pipe->open_loan(total);
  return true;
}

// Lets the peer take a message from where it lies, as far as `upto`; what it has taken is moved.
bool Executor::lend(RunOperand& target, std::size_t step, std::uint64_t upto, std::uint64_t total) {
  SendPort& port = *target.send;
  const bool was_open = target.head_left == 0;
  if (port.turn == target.ordinal) {
    if (!open_loan(target, step, total)) return false;
    port.pipe->offer(target.base + upto);
    if (upto == total) ++port.turn;
  }
  if (target.head_left != 0 || target.moved == total) return false;
  const std::uint64_t taken = port.pipe->taken();
  const std::uint64_t moved = taken <= target.base ? 0 : std::min(total, taken - target.base);
  const bool more = moved != target.moved || !was_open;
  target.moved = moved;
  return more;
}

// Puts a message where the peer wants it.
bool Executor::land(RunOperand& target, std::size_t step, const std::byte* memory, std::uint64_t upto, std::uint64_t total) {
  SendPort& port = *target.send;
  if (port.turn != target.ordinal) return false;
  const bool was_open = target.head_left == 0;
  if (!open_loan(target, step, total)) return false;
  const std::uint64_t n = std::min<std::uint64_t>(upto - target.moved, segment_bytes_);
  if (n == 0) return !was_open;
  copy_bytes(target.landing + target.moved, memory + target.moved, n);
  traffic_.read += n;
  traffic_.written += n;
  target.moved += n;
  port.pipe->offer(target.base + target.moved);
  if (target.moved == total) ++port.turn;
  return true;
}

// Takes the header of one message; true once that is done and it is this message's turn.
bool Executor::open(RunOperand& source, std::size_t step, std::uint64_t total) {
  RecvPort& port = *source.recv;
  if (source.head_left == 0) return true;
  if (port.turn != source.ordinal) return false;
  std::span<const std::byte> head = port.pipe->peek(kFrameHeaderBytes, kFrameHeaderBytes);
  FrameHeader header;  // alone it can already tell that this is another message
  if (!head.empty() && source.head_left > kFrameHeaderBytes && decode(head.first<kFrameHeaderBytes>(), header) == WireFault::none &&
      (header.flags & kFrameHasFingerprint) != 0)
    head = port.pipe->peek(source.head_left, source.head_left);
  if (head.empty()) {
    if (port.pipe->state() != PipeState::open)
      fail(FailureKind::peer_lost, static_cast<int>(port.peer), step, "the connection was closed");
    return false;
  }
  if (!check_header(source, step, total, head)) return false;
  port.pipe->consume(source.head_left);
  source.head_left = 0;
  if (total == 0) ++port.turn;
  return source.way == Way::stream || borrow(source, step, total);
}

bool Executor::borrow(const RunOperand& source, std::size_t step, std::uint64_t total) {
  const Loan loan{source.way == Way::lent ? Loan::Kind::lent : Loan::Kind::landed, source.place.segment, source.place.offset, total};
  if (source.recv->pipe->borrow(loan)) return true;
  fail(FailureKind::transport, static_cast<int>(source.recv->peer), step, "the memory that the peer shares cannot be mapped here");
  return false;
}

bool Executor::check_header(RunOperand& source, std::size_t step, std::uint64_t total, std::span<const std::byte> head) {
  const int peer = static_cast<int>(source.recv->peer);
  FrameHeader header;
  const WireFault fault = decode(head.first<kFrameHeaderBytes>(), header);
  if (fault != WireFault::none) {
    fail(FailureKind::transport, peer, step, std::string("received bytes that are no frame: ") + describe(fault));
    return false;
  }
  Fingerprint theirs;
  bool same = true;
  if ((header.flags & kFrameHasFingerprint) != 0 && head.size() >= kFrameHeaderBytes + kFingerprintBytes) {
    decode(head.subspan<kFrameHeaderBytes, kFingerprintBytes>(), theirs);
    same = same_contract(mine_, theirs);
  }
  same = same && header.kind == FrameKind::collective && header.communicator == communicator_ && header.sequence_or_tag == mine_.sequence &&
         header.plan_digest == mine_.plan_digest && header.step == source.ordinal && header.length == total &&
         ((header.flags & kFrameHasFingerprint) != 0) == (source.head_left > kFrameHeaderBytes);
  constexpr std::uint16_t kLoans = kFrameLent | kFrameLanded;
  same = same && ((header.flags & kLoans) == 0 || !source.recv->remote);
  if (same) {
    source.way = (header.flags & kFrameLent) != 0 ? Way::lent : (header.flags & kFrameLanded) != 0 ? Way::landed : Way::stream;
    source.place = {header.segment, header.offset};
    return true;
  }
  // Without a fingerprint, or where that is the same, the frame itself says what is wrong.
  std::string text;
  if (theirs.sequence == 0 || same_contract(mine_, theirs)) {
    theirs = {};
    if (header.sequence_or_tag != mine_.sequence)
      text = "expected a message of collective #" + std::to_string(mine_.sequence) + ", received one of #" + std::to_string(header.sequence_or_tag);
    else if (header.length != total)
      text = "expected a message of " + std::to_string(total) + " bytes, received one of " + std::to_string(header.length);
    else
      text = "expected message " + std::to_string(source.ordinal) + " of plan " + std::to_string(mine_.plan_digest) + ", received message " +
             std::to_string(header.step) + " of plan " + std::to_string(header.plan_digest);
  }
  fail(FailureKind::desync, peer, step, std::move(text));
  failure_.theirs = theirs;
  return false;
}

}  // namespace hccl_py
