// SPDX-License-Identifier: Apache-2.0
// Sends and receives of one group, matched by peer and tag, on pipes of their own: a collective never waits for them
// nor they for it. Small messages go at once and are kept where nobody waits for them yet; large ones ask first, and
// within a host the receiver then reads them where they lie.
// The same pipes carry bad news between hosts.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "hccl_py/op.hpp"
#include "hccl_py/ports.hpp"

namespace hccl_py {

class PointToPoint {
 public:
  // Messages above `eager_bytes` are sent only once the receiver has posted its receive; from `lend_bytes` on they are
  // left in the sender's memory where the pipe can do that (0: never).
  PointToPoint(std::uint32_t world, std::uint32_t rank, std::uint32_t communicator, std::uint64_t eager_bytes = 16 * 1024,
               std::uint64_t lend_bytes = 0);

  void attach(std::uint32_t peer, SendPipe& send, RecvPipe& recv);
  // Takes up a send or a receive; the op must stay where it is until it is finished or forgotten.
  void post(Op& op);
  // Moves whatever can be moved; true if anything was.
  bool progress();
  // True while an op is unfinished or bytes wait to be sent.
  bool busy() const { return unfinished_ != 0 || outgoing_ != 0; }
  // True while an op is unfinished.
  bool waiting() const { return unfinished_ != 0; }
  // Fails all unfinished ops.
  void fail_all(const Failure& why);
  // Queues bad news for `peer`.
  void send_abort(std::uint32_t peer, const Failure& why);
  // Queues the word that this rank leaves in order, so that `peer` misses it only where an op needs it.
  void send_goodbye(std::uint32_t peer);
  // True if `peer` said goodbye.
  bool left(std::uint32_t peer) const { return peers_[peer].left; }
  // Bad news received, or a broken pipe.
  const Failure& bad_news() const { return bad_news_; }

 private:
  struct Outgoing {
    FrameHeader header;
    std::vector<std::byte> own;  // payload that belongs to the message itself
    const std::byte* body = nullptr;
    std::uint64_t moved = 0;
    std::uint32_t head_left = kFrameHeaderBytes;
    Op* op = nullptr;  // finished once all is sent
    bool lent = false;  // only the header is sent
  };
  // A send whose message the peer takes from where it lies, until its loans are taken up to `end`.
  struct Lent {
    std::uint64_t end;
    Op* op;
  };
  // A message nobody waits for yet.
  struct Unexpected {
    std::uint32_t peer;
    std::uint64_t tag;
    std::uint64_t bytes;
    std::uint32_t id;
    bool asks;      // a large message: not here yet
    bool complete;  // all of a small one is here
    Op* taker = nullptr;  // a receive that came while it was arriving
    std::vector<std::byte> data;
  };
  struct Peer {
    SendPipe* send = nullptr;
    RecvPipe* recv = nullptr;
    std::deque<Outgoing> outgoing;
    std::vector<Op*> sent;  // sends that the pipe has taken and may still hold back
    std::deque<Lent> lent;  // oldest first
    std::vector<std::pair<std::uint32_t, Op*>> granted;   // receives whose data may come, by message id
    std::vector<std::pair<std::uint32_t, Op*>> asking;    // sends that wait for leave
    std::uint32_t next_id = 0;
    bool left = false;  // it said goodbye
    bool in_message = false;
    FrameHeader header;
    std::uint64_t moved = 0;
    Op* into = nullptr;                    // where the payload goes: an op,
    Unexpected* kept = nullptr;            // a kept message,
    std::vector<std::byte> text;           // or bad news
  };

  bool needs(std::uint32_t index);
  bool send_some(Peer& peer);
  bool end_loans(Peer& peer);
  bool receive_some(std::uint32_t index);
  bool take_header(std::uint32_t index);
  void end_message(std::uint32_t index);
  void post_send(Op& op);
  void post_recv(Op& op);
  void grant(std::uint32_t from, std::uint32_t id, Op& op, bool good);
  void deliver(Unexpected& message, Op& op);
  bool fits(Op& op, std::uint32_t peer, std::uint64_t tag, std::uint64_t bytes);
  Op* match(std::uint32_t peer, std::uint64_t tag);
  void finish(Op& op);
  void lose(std::uint32_t peer, FailureKind kind, const char* why);

  std::uint32_t rank_;
  std::uint32_t communicator_;
  std::uint64_t eager_bytes_;
  std::uint64_t lend_bytes_;
  std::vector<Peer> peers_;
  std::list<Op*> posted_;            // receives, oldest first
  std::list<Unexpected> unexpected_; // oldest first
  std::size_t unfinished_ = 0;
  std::size_t outgoing_ = 0;
  Failure bad_news_;
};

}  // namespace hccl_py
