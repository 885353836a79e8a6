// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/point_to_point.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace hccl_py {
namespace {

// Takes the entry `id` out of a list of (id, op); nullptr in `found` is a legal op.
bool take(std::vector<std::pair<std::uint32_t, Op*>>& list, std::uint32_t id, Op*& found) {
  const auto it = std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.first == id; });
  if (it == list.end()) return false;
  found = it->second;
  list.erase(it);
  return true;
}

constexpr std::size_t kMostTextBytes = 4096;               // of bad news
constexpr std::size_t kMostTakenBytes = std::size_t{4} << 20;  // of a message before others get their turn

}  // namespace

PointToPoint::PointToPoint(std::uint32_t world, std::uint32_t rank, std::uint32_t communicator, std::uint64_t eager_bytes,
                           std::uint64_t lend_bytes)
    : rank_(rank), communicator_(communicator), eager_bytes_(eager_bytes), lend_bytes_(lend_bytes), peers_(world) {}

void PointToPoint::attach(std::uint32_t peer, SendPipe& send, RecvPipe& recv) {
  peers_[peer].send = &send;
  peers_[peer].recv = &recv;
}

void PointToPoint::post(Op& op) {
  ++unfinished_;
  if (op.kind == Op::Kind::send)
    post_send(op);
  else
    post_recv(op);
}

void PointToPoint::post_send(Op& op) {
  const auto to = static_cast<std::uint32_t>(op.peer);
  if (to == rank_) {  // to ourselves: by memory
    const bool here = true;
    unexpected_.push_back({rank_, op.tag, op.bytes, 0, !here, here, nullptr, {op.memory, op.memory + op.bytes}});
    if (Op* receiver = match(rank_, op.tag)) {
      deliver(unexpected_.back(), *receiver);
      unexpected_.pop_back();
    }
    finish(op);
    return;
  }
  Peer& peer = peers_[to];
  Outgoing out;
  out.header.communicator = communicator_;
  out.header.sequence_or_tag = op.tag;
  out.header.step = peer.next_id++;
  if (op.bytes <= eager_bytes_) {
    out.header.kind = FrameKind::p2p_eager;
    out.header.length = op.bytes;
    out.body = op.memory;
    out.op = &op;
  } else {
    out.header.kind = FrameKind::p2p_rts;
    out.header.offset = op.bytes;  // how many will follow
    peer.asking.emplace_back(out.header.step, &op);
  }
  peer.outgoing.push_back(std::move(out));
  ++outgoing_;
}

void PointToPoint::post_recv(Op& op) {
  const auto it = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& m) {
    return m.taker == nullptr && op.takes(m.peer, m.tag);
  });
  if (it == unexpected_.end()) {
    posted_.push_back(&op);
  } else if (it->asks) {
    const Unexpected message = std::move(*it);
    unexpected_.erase(it);
    const bool good = fits(op, message.peer, message.tag, message.bytes);
    grant(message.peer, message.id, op, good);
  } else if (it->complete) {
    deliver(*it, op);
    unexpected_.erase(it);
  } else {
    it->taker = &op;
  }
}

// Tells the sender to go on; what does not fit is received all the same, into nothing.
void PointToPoint::grant(std::uint32_t from, std::uint32_t id, Op& op, bool good) {
  Peer& peer = peers_[from];
  peer.granted.emplace_back(id, good ? &op : nullptr);
  Outgoing out;
  out.header.kind = FrameKind::p2p_cts;
  out.header.communicator = communicator_;
  out.header.step = id;
  peer.outgoing.push_back(std::move(out));
  ++outgoing_;
}

void PointToPoint::deliver(Unexpected& message, Op& op) {
  if (!fits(op, message.peer, message.tag, message.bytes)) return;
  if (message.bytes != 0) std::memcpy(op.memory, message.data.data(), message.bytes);
  finish(op);
}

// A message must be exactly as long as the receive, unless that says otherwise: anything else is two ranks that disagree.
bool PointToPoint::fits(Op& op, std::uint32_t peer, std::uint64_t tag, std::uint64_t bytes) {
  op.source = static_cast<int>(peer);
  op.got_tag = tag;
  op.got_bytes = bytes;
  if (bytes == op.bytes || (op.shorter && bytes < op.bytes)) return true;
  Failure why;
  why.kind = FailureKind::truncated;
  why.culprit = static_cast<int>(peer);
  why.text = "rank " + std::to_string(peer) + " sent " + std::to_string(bytes) + " bytes with tag " + std::to_string(tag) +
             ", the receive has room for " + std::to_string(op.bytes);
  --unfinished_;
  op.fail(std::move(why));
  return false;
}

// The oldest receive that a message from `peer` with `tag` belongs to; it is no longer posted then.
Op* PointToPoint::match(std::uint32_t peer, std::uint64_t tag) {
  const auto it = std::find_if(posted_.begin(), posted_.end(), [&](const Op* op) { return op->takes(peer, tag); });
  if (it == posted_.end()) return nullptr;
  Op* op = *it;
  posted_.erase(it);
  return op;
}

void PointToPoint::finish(Op& op) {
  --unfinished_;
  op.finish();
}

bool PointToPoint::progress() {
  bool moved = false;
  for (std::uint32_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.send == nullptr) continue;
    if (!peer.left) moved |= receive_some(i);
    moved |= end_loans(peer);  // what it took before it left, it has
    if (peer.left && needs(i)) lose(i, FailureKind::peer_lost, "it has left the group");
    if (peer.send == nullptr || peer.left) continue;
    moved |= send_some(peer);
    if (peer.send->state() == PipeState::failed) lose(i, FailureKind::peer_lost, "the connection broke");
  }
  return moved;
}

// True if an op cannot end without the peer.
bool PointToPoint::needs(std::uint32_t index) {
  Peer& peer = peers_[index];
  std::erase_if(peer.outgoing, [&](const Outgoing& out) {  // what belongs to no op has no reader any more
    outgoing_ -= out.op == nullptr;
    return out.op == nullptr;
  });
  return !peer.outgoing.empty() || !peer.sent.empty() || !peer.lent.empty() || !peer.asking.empty() || !peer.granted.empty() ||
         std::any_of(posted_.begin(), posted_.end(), [&](const Op* op) {
           return op->peer == static_cast<int>(index) ||
                  (op->peer < 0 && std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.recv == nullptr || p.left; }));
         });
}

bool PointToPoint::send_some(Peer& peer) {
  bool moved = false;
  while (!peer.outgoing.empty()) {
    Outgoing& out = peer.outgoing.front();
    std::array<std::byte, kFrameHeaderBytes> head;
    encode(out.header, std::span<std::byte, kFrameHeaderBytes>(head));
    const std::byte* body = out.own.empty() ? out.body : out.own.data();
    const std::size_t taken = peer.send->write(std::span<const std::byte>(head).last(out.head_left),
                                               {body + out.moved, out.lent ? 0 : out.header.length - out.moved}, peer.outgoing.size() > 1);
    const auto of_head = static_cast<std::uint32_t>(std::min<std::size_t>(taken, out.head_left));
    out.head_left -= of_head;
    out.moved += taken - of_head;
    moved |= taken != 0;
    if (out.head_left != 0 || (out.moved != out.header.length && !out.lent)) break;
    if (out.lent) {
      const std::uint64_t end = peer.send->open_loan(out.header.length) + out.header.length;
      peer.send->offer(end);
      peer.lent.push_back({end, out.op});
    } else if (out.op != nullptr) {
      peer.sent.push_back(out.op);
    }
    peer.outgoing.pop_front();
    --outgoing_;
  }
  // What the pipe still holds back is not sent yet, and nobody would drive us to push it once the op were over.
  if (peer.send->flush() && !peer.sent.empty()) {
    for (Op* op : peer.sent) finish(*op);
    peer.sent.clear();
    moved = true;
  }
  return moved;
}

// Finishes the sends whose messages the peer has taken.
bool PointToPoint::end_loans(Peer& peer) {
  bool moved = false;
  while (peer.send != nullptr && !peer.lent.empty() && peer.send->taken() >= peer.lent.front().end) {
    finish(*peer.lent.front().op);
    peer.lent.pop_front();
    moved = true;
  }
  return moved;
}

bool PointToPoint::receive_some(std::uint32_t index) {
  Peer& peer = peers_[index];
  bool moved = false;
  for (std::size_t taken = 0; taken < kMostTakenBytes;) {
    if (!peer.in_message) {
      if (!take_header(index)) return moved;
      moved = true;
      // To take a loan is long: the peer gets first what it waits for.
      if ((peer.header.flags & kFrameLent) != 0 && !peer.outgoing.empty()) return true;
    }
    std::byte trash[4096];
    while (peer.moved < peer.header.length) {
      std::byte* to = peer.into != nullptr   ? peer.into->memory + peer.moved
                      : peer.kept != nullptr ? peer.kept->data.data() + peer.moved
                      : !peer.text.empty()   ? peer.text.data() + peer.moved
                                             : trash;
      std::uint64_t want = peer.header.length - peer.moved;
      if (to == trash) want = std::min<std::uint64_t>(want, sizeof trash);
      want = std::min<std::uint64_t>(want, kMostTakenBytes - taken);
      if (want == 0) return true;
      const std::size_t n = peer.recv->read({to, want});
      if (n == 0) {
        if (peer.recv->state() != PipeState::open) lose(index, FailureKind::peer_lost, "the connection was closed");
        return moved;
      }
      peer.moved += n;
      taken += n;
      moved = true;
    }
    end_message(index);
  }
  return moved;
}

bool PointToPoint::take_header(std::uint32_t index) {
  Peer& peer = peers_[index];
  const std::span<const std::byte> head = peer.recv->peek(kFrameHeaderBytes, kFrameHeaderBytes);
  if (head.size() < kFrameHeaderBytes) {
    if (peer.recv->state() != PipeState::open && !peer.left) lose(index, FailureKind::peer_lost, "the connection was closed");
    return false;
  }
  const WireFault fault = decode(head.first<kFrameHeaderBytes>(), peer.header);
  if (fault != WireFault::none || peer.header.communicator != communicator_) {
    lose(index, FailureKind::transport, fault != WireFault::none ? describe(fault) : "a frame of another group arrived");
    return false;
  }
  peer.recv->consume(kFrameHeaderBytes);
  peer.in_message = true;
  peer.moved = 0;
  peer.into = nullptr;
  peer.kept = nullptr;
  peer.text.clear();
  const FrameHeader& h = peer.header;
  switch (h.kind) {
    case FrameKind::p2p_eager:
      if (h.length > eager_bytes_) {
        lose(index, FailureKind::transport, "a message arrived unasked that is too long for that");
        return false;
      }
      if (Op* op = match(index, h.sequence_or_tag)) {
        if (fits(*op, index, h.sequence_or_tag, h.length)) peer.into = op;
      } else {
        unexpected_.push_back({index, h.sequence_or_tag, h.length, h.step, false, false, nullptr, std::vector<std::byte>(h.length)});
        peer.kept = &unexpected_.back();
      }
      break;
    case FrameKind::p2p_rts:
      if (Op* op = match(index, h.sequence_or_tag))
        grant(index, h.step, *op, fits(*op, index, h.sequence_or_tag, h.offset));
      else
        unexpected_.push_back({index, h.sequence_or_tag, h.offset, h.step, true, false, nullptr, {}});
      break;
    case FrameKind::p2p_cts: {
      Op* op = nullptr;
      if (!take(peer.asking, h.step, op)) break;
      Outgoing out;
      out.header.kind = FrameKind::p2p_data;
      out.header.communicator = communicator_;
      out.header.sequence_or_tag = op->tag;
      out.header.step = h.step;
      out.header.length = op->bytes;
      out.body = op->memory;
      out.op = op;
      out.lent = lend_bytes_ != 0 && op->bytes >= lend_bytes_ && peer.send != nullptr && peer.send->lends(false);
      if (out.lent) {
        out.header.flags |= kFrameLent;
        out.header.offset = reinterpret_cast<std::uintptr_t>(op->memory);
      }
      peer.outgoing.push_back(std::move(out));
      ++outgoing_;
      break;
    }
    case FrameKind::p2p_data:
      if (!take(peer.granted, h.step, peer.into) || (peer.into != nullptr && h.length != peer.into->got_bytes)) {
        if (peer.into != nullptr) peer.granted.emplace_back(h.step, std::exchange(peer.into, nullptr));  // fail_all finds it there
        lose(index, FailureKind::transport, "data arrived that was not asked for");
        return false;
      }
      if ((h.flags & kFrameLent) != 0 && !peer.recv->borrow({Loan::Kind::lent, 0, h.offset, h.length})) {
        lose(index, FailureKind::transport, "a message was to be read from memory that cannot be reached");
        return false;
      }
      break;
    case FrameKind::abort:
      if (h.length > kMostTextBytes) {
        lose(index, FailureKind::transport, "bad news arrived that is too long");
        return false;
      }
      peer.text.resize(h.length);
      break;
    case FrameKind::collective: lose(index, FailureKind::transport, "a collective's frame arrived out of place"); return false;
    case FrameKind::goodbye: peer.left = true; break;
    case FrameKind::heartbeat: break;
  }
  return true;
}

void PointToPoint::end_message(std::uint32_t index) {
  Peer& peer = peers_[index];
  peer.in_message = false;
  if (Op* op = std::exchange(peer.into, nullptr)) finish(*op);
  if (Unexpected* kept = std::exchange(peer.kept, nullptr)) {
    kept->complete = true;
    if (Op* op = kept->taker) {
      deliver(*kept, *op);
      unexpected_.remove_if([&](const Unexpected& m) { return &m == kept; });
    }
  }
  if (peer.header.kind == FrameKind::abort && !bad_news_) {
    bad_news_.kind = peer.header.step <= static_cast<std::uint32_t>(FailureKind::internal) ? static_cast<FailureKind>(peer.header.step)
                                                                                           : FailureKind::internal;
    bad_news_.culprit = static_cast<int>(peer.header.offset) - 1;
    bad_news_.sequence = peer.header.sequence_or_tag;
    bad_news_.text.assign(reinterpret_cast<const char*>(peer.text.data()), peer.text.size());
  }
}

void PointToPoint::send_abort(std::uint32_t to, const Failure& why) {
  Peer& peer = peers_[to];
  if (peer.send == nullptr) return;
  Outgoing out;
  out.header.kind = FrameKind::abort;
  out.header.communicator = communicator_;
  out.header.sequence_or_tag = why.sequence;
  out.header.step = static_cast<std::uint32_t>(why.kind);
  out.header.offset = static_cast<std::uint64_t>(why.culprit + 1);
  const auto* text = reinterpret_cast<const std::byte*>(why.text.data());
  out.own.assign(text, text + std::min<std::size_t>(why.text.size(), kMostTextBytes));
  out.header.length = out.own.size();
  peer.outgoing.push_back(std::move(out));
  ++outgoing_;
}

void PointToPoint::send_goodbye(std::uint32_t to) {
  Peer& peer = peers_[to];
  if (peer.send == nullptr || peer.left) return;
  Outgoing out;
  out.header.kind = FrameKind::goodbye;
  out.header.communicator = communicator_;
  peer.outgoing.push_back(std::move(out));
  ++outgoing_;
}

void PointToPoint::fail_all(const Failure& why) {
  const auto fail = [&](Op* op) {
    if (op == nullptr || !op->pending()) return;
    --unfinished_;
    op->fail(why);
  };
  for (Op* op : posted_) fail(op);
  posted_.clear();
  for (Unexpected& message : unexpected_) fail(message.taker);
  unexpected_.clear();
  for (Peer& peer : peers_) {
    for (auto& [id, op] : peer.granted) fail(op);
    for (auto& [id, op] : peer.asking) fail(op);
    for (Outgoing& out : peer.outgoing) fail(std::exchange(out.op, nullptr));
    for (Op* op : peer.sent) fail(op);
    peer.sent.clear();
    for (const Lent& lent : peer.lent) fail(lent.op);
    peer.lent.clear();
    fail(std::exchange(peer.into, nullptr));
    peer.granted.clear();
    peer.asking.clear();
    // The payloads of failed ops may not be read any more; bad news may still go, unless a message is half sent.
    if (!peer.outgoing.empty()) {
      const Outgoing& next = peer.outgoing.front();
      if (next.header.kind != FrameKind::abort && (next.head_left != kFrameHeaderBytes || next.moved != 0)) peer.send = nullptr;
    }
    std::erase_if(peer.outgoing, [&](const Outgoing& out) {
      const bool drop = out.header.kind != FrameKind::abort || peer.send == nullptr;
      outgoing_ -= drop;
      return drop;
    });
    peer.kept = nullptr;
  }
}

void PointToPoint::lose(std::uint32_t index, FailureKind kind, const char* why) {
  Peer& peer = peers_[index];
  peer.send = nullptr;  // nothing more is asked of it
  outgoing_ -= peer.outgoing.size();
  for (Outgoing& out : peer.outgoing)
    if (out.op != nullptr) peer.asking.emplace_back(0, out.op);  // fail_all finds them there
  for (Op* op : peer.sent) peer.asking.emplace_back(0, op);
  for (const Lent& lent : peer.lent) peer.asking.emplace_back(0, lent.op);
  peer.outgoing.clear();
  peer.sent.clear();
  peer.lent.clear();
  if (bad_news_) return;
  bad_news_.kind = kind;
  bad_news_.culprit = static_cast<int>(index);
  bad_news_.text = why;
}

}  // namespace hccl_py
