// SPDX-License-Identifier: Apache-2.0
// Point to point, all ranks driven by one thread over awkward pipes: who is matched with whom, what waits for whom, and
// what comes of wrong frames, broken pipes and farewells.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check.hpp"
#include "hccl_py/point_to_point.hpp"
#include "pipes.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr std::uint32_t kCommunicator = 5;
constexpr std::uint64_t kEager = 100;

// Its peer can read the memory of the writer, being the same process.
class LendingPipe final : public AwkwardPipe {
 public:
  using AwkwardPipe::AwkwardPipe;
  bool lends(bool shared) const override { return !shared; }
  std::uint64_t open_loan(std::uint64_t bytes) override { return std::exchange(end_, end_ + bytes); }
  void offer(std::uint64_t position) override { offered_ = position; }
  std::uint64_t taken() const override { return taken_; }
  bool borrow(const Loan& loan) override {
    at_ = reinterpret_cast<const std::byte*>(loan.at);
    left_ = loan.bytes;
    return reachable;
  }
  std::size_t read(std::span<std::byte> out) override {
    if (left_ == 0) return AwkwardPipe::read(out);
    const std::size_t n = std::min<std::size_t>({out.size(), left_, offered_ - taken_, 77});
    std::copy_n(at_, n, out.begin());
    at_ += n;
    left_ -= n;
    taken_ += n;
    return n;
  }

  bool reachable = true;

 private:
  std::uint64_t end_ = 0, offered_ = 0, taken_ = 0;
  const std::byte* at_ = nullptr;
  std::uint64_t left_ = 0;
};

class Ranks {
 public:
  explicit Ranks(std::uint32_t world, std::size_t capacity = 300, std::size_t chunk = 17) : world_(world) {
    for (std::uint32_t i = 0; i < world * world; ++i) pipes_.push_back(std::make_unique<AwkwardPipe>(capacity, chunk));
    for (std::uint32_t r = 0; r < world; ++r) {
      ranks_.push_back(std::make_unique<PointToPoint>(world, r, kCommunicator, kEager));
      for (std::uint32_t p = 0; p < world; ++p)
        if (p != r) ranks_[r]->attach(p, pipe(r, p), pipe(p, r));
    }
  }
  PointToPoint& operator[](std::uint32_t rank) { return *ranks_[rank]; }
  AwkwardPipe& pipe(std::uint32_t from, std::uint32_t to) { return *pipes_[from * world_ + to]; }
  // Until nothing moves any more.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& rank : ranks_) moved |= rank->progress();
    }
  }

 private:
  std::uint32_t world_;
  std::vector<std::unique_ptr<AwkwardPipe>> pipes_;
  std::vector<std::unique_ptr<PointToPoint>> ranks_;
};

struct Message {
  Message(Op::Kind kind, int peer, std::uint64_t tag, std::size_t bytes, int fill = 0) : data(bytes, static_cast<std::byte>(fill)) {
    op.kind = kind;
    op.peer = peer;
    op.tag = tag;
    op.memory = data.data();
    op.bytes = bytes;
  }
  bool pending() const { return op.pending(); }
  bool done() const { return op.state.load() == Op::State::done; }
  bool failed(FailureKind kind) const { return op.state.load() == Op::State::failed && op.failure->kind == kind; }
  bool holds(int fill) const {
    return done() && std::all_of(data.begin(), data.end(), [&](std::byte b) { return b == static_cast<std::byte>(fill); });
  }
  std::vector<std::byte> data;
  Op op;
};

Message sending(int to, std::uint64_t tag, std::size_t bytes, int fill) { return {Op::Kind::send, to, tag, bytes, fill}; }
Message receiving(int from, std::uint64_t tag, std::size_t bytes) { return {Op::Kind::recv, from, tag, bytes}; }

// Small and large, posted in both orders.
void test_messages_arrive() {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{kEager}, std::size_t{kEager + 1}, std::size_t{5000}})
    for (const bool receive_first : {false, true}) {
      Ranks ranks(2);
      Message s = sending(1, 9, bytes, 42), r = receiving(0, 9, bytes);
      if (receive_first) ranks[1].post(r.op);
      ranks.settle();
      ranks[0].post(s.op);
      ranks.settle();
      if (!receive_first) {
        CHECK(s.done() == (bytes <= kEager));  // a large one waits for its receive
        ranks[1].post(r.op);
        ranks.settle();
      }
      CHECK(s.done() && r.holds(42));
      CHECK_EQ(r.op.source, 0);
      CHECK(!ranks[0].busy() && !ranks[1].busy());
    }
}

struct Lenders {
  static constexpr std::uint64_t kLend = 200;
  Lenders() {
    for (std::uint32_t r = 0; r < 2; ++r) ranks[r].attach(1 - r, pipes[r], pipes[1 - r]);
  }
  void settle() {
    while (ranks[0].progress() | ranks[1].progress()) {
    }
  }
  LendingPipe pipes[2];
  PointToPoint ranks[2] = {{2, 0, kCommunicator, kEager, kLend}, {2, 1, kCommunicator, kEager, kLend}};
};

// Nothing but headers passes through the pipe, and a send is over once its memory has been read.
void test_large_messages_are_lent() {
  for (const std::size_t bytes : {std::size_t{Lenders::kLend - 1}, std::size_t{Lenders::kLend}, std::size_t{9000000}}) {
    Lenders two;
    Message s = sending(1, 9, bytes, 42), back = sending(0, 9, bytes, 43), r = receiving(0, 9, bytes), q = receiving(1, 9, bytes);
    two.ranks[0].post(s.op);
    two.ranks[1].post(back.op);
    two.settle();
    CHECK(s.pending() && back.pending());
    two.ranks[1].post(r.op);
    two.ranks[0].post(q.op);
    two.settle();
    CHECK(s.done() && back.done() && r.holds(42) && q.holds(43));
    CHECK_EQ(two.pipes[0].taken(), bytes >= Lenders::kLend ? bytes : 0);
    CHECK(!two.ranks[0].busy() && !two.ranks[1].busy());
  }
}

// Who leaves right after having taken a message is not missed.
void test_a_loan_that_was_taken_outlives_a_goodbye() {
  Lenders two;
  Message s = sending(1, 9, 5000, 42), r = receiving(0, 9, 5000);
  two.ranks[1].post(r.op);
  two.ranks[0].post(s.op);
  while (r.pending()) {
    two.ranks[1].progress();
    if (r.pending()) two.ranks[0].progress();
  }
  two.ranks[1].send_goodbye(0);
  two.ranks[1].progress();
  CHECK(s.pending());
  two.settle();
  CHECK(s.done() && r.holds(42) && !two.ranks[0].bad_news());
}

void test_loans_that_end_badly() {
  Lenders unreachable;
  unreachable.pipes[0].reachable = false;
  Message s = sending(1, 9, 500, 1), r = receiving(0, 9, 500);
  unreachable.ranks[1].post(r.op);
  unreachable.ranks[0].post(s.op);
  unreachable.settle();
  CHECK(unreachable.ranks[1].bad_news().kind == FailureKind::transport);
  CHECK(s.pending());  // offered, never taken
  unreachable.ranks[0].fail_all(unreachable.ranks[1].bad_news());
  CHECK(s.failed(FailureKind::transport));
  unreachable.ranks[1].fail_all(unreachable.ranks[1].bad_news());
  CHECK(r.failed(FailureKind::transport));
  CHECK(!unreachable.ranks[0].waiting() && !unreachable.ranks[1].waiting());

  Lenders gone;  // the peer leaves without having taken it
  Message lost = sending(1, 9, 500, 1), asked = receiving(0, 9, 500);
  gone.ranks[1].post(asked.op);
  gone.ranks[0].post(lost.op);
  for (int i = 0; i < 50; ++i) gone.ranks[0].progress();
  while (gone.pipes[1].size() == 0) gone.ranks[1].progress();  // until it has asked for it
  for (int i = 0; i < 50; ++i) gone.ranks[0].progress();
  gone.pipes[1].end(PipeState::closed);
  gone.settle();
  CHECK(gone.ranks[0].bad_news().kind == FailureKind::peer_lost);
  gone.ranks[0].fail_all(gone.ranks[0].bad_news());
  CHECK(lost.failed(FailureKind::peer_lost));
}

void test_order_within_a_tag() {
  for (const bool receive_first : {false, true}) {
    Ranks ranks(2);
    // Sizes on both sides of the eager limit: none overtakes another.
    std::deque<Message> sends, receives;
    for (int i = 0; i < 8; ++i) {
      const std::size_t bytes = i % 2 == 0 ? 50 : 200;
      sends.emplace_back(Op::Kind::send, 1, 3, bytes, i + 1);
      receives.emplace_back(Op::Kind::recv, i % 3 == 0 ? -1 : 0, 3, bytes);
    }
    for (Message& m : receive_first ? receives : sends) ranks[receive_first ? 1 : 0].post(m.op);
    ranks.settle();
    for (Message& m : receive_first ? sends : receives) ranks[receive_first ? 0 : 1].post(m.op);
    ranks.settle();
    for (int i = 0; i < 8; ++i) CHECK(receives[static_cast<std::size_t>(i)].holds(i + 1));
  }
}

void test_tags_and_peers_select() {
  Ranks ranks(3);
  Message a = sending(2, 1, 10, 1), b = sending(2, 2, 10, 2), c = sending(2, 1, 10, 3);
  ranks[0].post(a.op);
  ranks[0].post(b.op);
  ranks[1].post(c.op);
  ranks.settle();
  Message two = receiving(0, 2, 10), from_one = receiving(1, 1, 10), none = receiving(1, 2, 10), one = receiving(0, 1, 10);
  for (Message* m : {&two, &from_one, &none, &one}) ranks[2].post(m->op);
  CHECK(two.holds(2) && from_one.holds(3) && one.holds(1));  // they were there already
  CHECK(none.pending());
  CHECK(ranks[2].busy());
}

void test_any_source_takes_the_oldest() {
  Ranks ranks(3);
  Message a = sending(2, 7, 10, 1), b = sending(2, 7, 10, 2);
  ranks[1].post(a.op);
  ranks.settle();
  ranks[0].post(b.op);
  ranks.settle();
  Message first = receiving(-1, 7, 10), second = receiving(-1, 7, 10);
  ranks[2].post(first.op);
  ranks[2].post(second.op);
  CHECK(first.holds(1) && second.holds(2));
  CHECK_EQ(first.op.source, 1);
  CHECK_EQ(second.op.source, 0);
  // Posted first: the oldest receive that fits is served.
  Message any = receiving(-1, 8, 10), zero = receiving(0, 8, 10), c = sending(2, 8, 10, 3), d = sending(2, 8, 10, 4);
  ranks[2].post(any.op);
  ranks[2].post(zero.op);
  ranks[0].post(c.op);
  ranks[0].post(d.op);
  ranks.settle();
  CHECK(any.holds(3) && zero.holds(4));
}

// A receive that is posted while its message is arriving.
void test_receive_in_the_middle_of_arrival() {
  Ranks ranks(2, 300, 10);
  Message s = sending(1, 4, 100, 9), r = receiving(0, 4, 100), other = receiving(0, 4, 100);
  ranks[0].post(s.op);
  ranks[0].progress();
  while (ranks.pipe(0, 1).size() < 80) ranks[0].progress();
  ranks[1].progress();
  CHECK(ranks.pipe(0, 1).size() < 64);
  ranks[1].post(r.op);
  ranks[1].post(other.op);
  CHECK(r.pending());
  ranks.settle();
  CHECK(r.holds(9) && other.pending());
}

void test_wrong_lengths_fail_the_receive_only() {
  for (const std::size_t sent : {std::size_t{60}, std::size_t{1000}})
    for (const std::size_t room : {sent - 1, sent + 1})
      for (const bool receive_first : {false, true}) {
        Ranks ranks(2);
        Message s = sending(1, 1, sent, 1), r = receiving(0, 1, room), next_s = sending(1, 1, 200, 2), next_r = receiving(0, 1, 200);
        if (receive_first) ranks[1].post(r.op);
        ranks[0].post(s.op);
        ranks.settle();
        if (!receive_first) ranks[1].post(r.op);
        ranks.settle();
        CHECK(r.failed(FailureKind::truncated));
        CHECK_EQ(r.op.failure->culprit, 0);
        CHECK(r.op.failure->text.find(std::to_string(sent)) != std::string::npos && r.op.failure->text.find(std::to_string(room)) != std::string::npos);
        CHECK(std::all_of(r.data.begin(), r.data.end(), [](std::byte b) { return b == std::byte{0}; }));
        CHECK(s.done());
        ranks[0].post(next_s.op);
        ranks[1].post(next_r.op);
        ranks.settle();
        CHECK(next_r.holds(2));
        CHECK(!ranks[0].busy() && !ranks[1].busy());
      }
}

void test_messages_to_oneself() {
  Ranks ranks(2);
  Message s = sending(0, 1, 500, 7), r = receiving(0, 1, 500), any = receiving(-1, 1, 500), s2 = sending(0, 1, 500, 8);
  ranks[0].post(s.op);
  CHECK(s.done());
  ranks[0].post(r.op);
  CHECK(r.holds(7));
  CHECK_EQ(r.op.source, 0);
  ranks[0].post(any.op);
  ranks[0].post(s2.op);
  CHECK(any.holds(8));
  Message s3 = sending(0, 1, 5, 1), wrong = receiving(0, 1, 6);
  ranks[0].post(s3.op);
  ranks[0].post(wrong.op);
  CHECK(wrong.failed(FailureKind::truncated));
  CHECK(!ranks[0].busy());
}

// A send is over once its bytes have left this process, not before: nobody drives us after that.
void test_a_send_is_over_when_nothing_is_held_back() {
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{1000}}) {
    Ranks ranks(2, 10000, 10000);
    Message s = sending(1, 1, bytes, 3), r = receiving(0, 1, bytes);
    ranks[1].post(r.op);
    if (bytes > kEager) {  // up to where the data go
      ranks[0].post(s.op);
      ranks[0].progress();
      ranks[1].progress();
      ranks.pipe(0, 1).holds_back = true;
    } else {
      ranks.pipe(0, 1).holds_back = true;
      ranks[0].post(s.op);
    }
    ranks.settle();
    CHECK(s.pending() && r.pending() && ranks[0].busy());
    ranks.pipe(0, 1).holds_back = false;
    ranks.settle();
    CHECK(s.done() && r.holds(3) && !ranks[0].busy());
  }
}

void test_bad_news_travel() {
  Ranks ranks(2);
  hccl_py::Failure why;
  why.kind = FailureKind::peer_lost;
  why.culprit = 7;
  why.sequence = 99;
  why.text = std::string(300, 'x');
  Message s = sending(1, 1, 50, 1);
  ranks[0].post(s.op);
  ranks[0].send_abort(1, why);
  ranks.settle();
  const hccl_py::Failure& news = ranks[1].bad_news();
  CHECK(news.kind == FailureKind::peer_lost);
  CHECK_EQ(news.culprit, 7);
  CHECK_EQ(news.sequence, 99u);
  CHECK_EQ(news.text, why.text);
  why.culprit = -1;  // nobody is to blame; a text that is too long is cut
  why.text = std::string(1'000'000, 'y');
  ranks[1].send_abort(0, why);
  ranks.settle();
  CHECK_EQ(ranks[0].bad_news().culprit, -1);
  CHECK_EQ(ranks[0].bad_news().text, std::string(4096, 'y'));
}

// Rank 0 receives this frame; what does it make of it?
hccl_py::Failure news_of(const std::function<void(FrameHeader&)>& spoil, Message* receive = nullptr) {
  Ranks ranks(2, 10000, 10000);
  if (receive != nullptr) ranks[0].post(receive->op);
  FrameHeader header;
  header.kind = FrameKind::p2p_eager;
  header.communicator = kCommunicator;
  header.length = 20;
  spoil(header);
  std::array<std::byte, kFrameHeaderBytes> head;
  encode(header, std::span<std::byte, kFrameHeaderBytes>(head));
  const std::vector<std::byte> body(20);
  ranks.pipe(1, 0).write(head, body, false);
  ranks.settle();
  const hccl_py::Failure news = ranks[0].bad_news();
  hccl_py::Failure why;
  why.kind = FailureKind::aborted;
  ranks[0].fail_all(why);
  CHECK(!ranks[0].busy());
  return news;
}

void test_wrong_frames_are_bad_news() {
  CHECK(!news_of([](FrameHeader&) {}));
  CHECK(!news_of([](FrameHeader& h) { h.kind = FrameKind::heartbeat; h.length = 0; }));
  const auto wrong = [](const std::function<void(FrameHeader&)>& spoil) {
    const hccl_py::Failure news = news_of(spoil);
    CHECK(news.kind == FailureKind::transport);
    CHECK_EQ(news.culprit, 1);
  };
  wrong([](FrameHeader& h) { h.magic = 0; });
  wrong([](FrameHeader& h) { h.communicator = 6; });
  wrong([](FrameHeader& h) { h.kind = FrameKind::collective; });
  wrong([](FrameHeader& h) { h.kind = static_cast<FrameKind>(77); });
  // Lengths are memory: none is believed.
  wrong([](FrameHeader& h) { h.length = kEager + 1; });
  wrong([](FrameHeader& h) { h.length = std::uint64_t{1} << 61; });
  wrong([](FrameHeader& h) {
    h.kind = FrameKind::abort;
    h.length = std::uint64_t{1} << 61;
  });
  wrong([](FrameHeader& h) { h.kind = FrameKind::p2p_data; });  // nobody asked for it
  // A kind of failure that this build does not know.
  CHECK(news_of([](FrameHeader& h) {
          h.kind = FrameKind::abort;
          h.step = 1000;
        }).kind == FailureKind::internal);
}

void test_data_of_another_length_than_announced() {
  Ranks ranks(2, 10000, 10000);
  Message r = receiving(1, 0, 500);
  ranks[0].post(r.op);
  FrameHeader header;
  header.communicator = kCommunicator;
  std::array<std::byte, kFrameHeaderBytes> head;
  header.kind = FrameKind::p2p_rts;
  header.offset = 500;
  encode(header, std::span<std::byte, kFrameHeaderBytes>(head));
  ranks.pipe(1, 0).write(head, {}, false);
  ranks[0].progress();
  header.kind = FrameKind::p2p_data;
  header.length = 600;
  encode(header, std::span<std::byte, kFrameHeaderBytes>(head));
  ranks.pipe(1, 0).write(head, std::vector<std::byte>(600), false);
  ranks[0].progress();
  CHECK(ranks[0].bad_news().kind == FailureKind::transport);
  hccl_py::Failure why;
  why.kind = FailureKind::aborted;
  ranks[0].fail_all(why);
  CHECK(r.failed(FailureKind::aborted) && !ranks[0].busy());
}

void test_pipes_that_end_are_bad_news() {
  for (const PipeState how : {PipeState::closed, PipeState::failed}) {
    Ranks ranks(3);
    ranks.pipe(1, 0).end(how);
    ranks[0].progress();
    CHECK(ranks[0].bad_news().kind == FailureKind::peer_lost);
    CHECK_EQ(ranks[0].bad_news().culprit, 1);
    Message other = receiving(2, 0, 10), s = sending(0, 0, 10, 4);
    ranks[0].post(other.op);  // the others go on
    ranks[2].post(s.op);
    ranks.settle();
    CHECK(other.holds(4));
  }
  Ranks ranks(2);
  Message s = sending(1, 0, 5000, 1), r = receiving(0, 0, 5000);
  ranks[0].post(s.op);
  ranks[1].post(r.op);
  for (int i = 0; i < 10; ++i) ranks[0].progress(), ranks[1].progress();
  CHECK(s.pending() && r.pending());
  ranks.pipe(0, 1).end(PipeState::failed);  // in the middle of a message, for both ends
  ranks.settle();
  for (const std::uint32_t rank : {0u, 1u}) {
    CHECK(ranks[rank].bad_news().kind == FailureKind::peer_lost);
    ranks[rank].fail_all(ranks[rank].bad_news());
    CHECK(!ranks[rank].busy());
  }
  CHECK(s.failed(FailureKind::peer_lost) && r.failed(FailureKind::peer_lost));
}

void test_who_said_goodbye_is_missed_only_where_needed() {
  const auto leave = [](Ranks& ranks, std::uint32_t rank) {
    for (const std::uint32_t peer : {0u, 1u, 2u})
      if (peer != rank) ranks[rank].send_goodbye(peer);
    while (ranks[rank].busy()) ranks.settle();
    for (const std::uint32_t peer : {0u, 1u, 2u})
      if (peer != rank) ranks.pipe(rank, peer).end(PipeState::closed);
    ranks.settle();
  };
  Ranks ranks(3);
  Message s = sending(0, 1, 80, 5);
  ranks[1].post(s.op);  // sent before it leaves, received after
  leave(ranks, 1);
  CHECK(ranks[0].left(1) && !ranks[0].left(2));
  CHECK(!ranks[0].bad_news() && !ranks[2].bad_news());
  Message r = receiving(1, 1, 80);
  ranks[0].post(r.op);
  CHECK(r.holds(5));
  Message any = receiving(-1, 1, 80);
  ranks[0].post(any.op);
  ranks.settle();
  CHECK(!ranks[0].bad_news());  // rank 2 may still send
  leave(ranks, 2);
  CHECK(ranks[0].bad_news().kind == FailureKind::peer_lost);
  for (const bool send : {false, true}) {
    Ranks again(3);
    leave(again, 1);
    Message late = send ? sending(1, 1, 5, 0) : receiving(1, 1, 5);
    again[0].post(late.op);
    again.settle();
    CHECK(again[0].bad_news().kind == FailureKind::peer_lost);
    CHECK_EQ(again[0].bad_news().culprit, 1);
    again[0].fail_all(again[0].bad_news());
    CHECK(late.failed(FailureKind::peer_lost) && !again[0].busy());
  }
}

// Ops in every state that there is fail; ops that were over are not touched any more, their memory is gone.
void test_fail_all_fails_what_is_left() {
  Ranks ranks(2, 150, 150);
  for (const std::size_t bytes : {std::size_t{30}, std::size_t{1000}}) {
    auto s = std::make_unique<Message>(Op::Kind::send, 1, 1, bytes, 1);
    auto r = std::make_unique<Message>(Op::Kind::recv, 0, 1, bytes);
    ranks[0].post(s->op);
    ranks[1].post(r->op);
    ranks.settle();
    CHECK(s->done() && r->done());
  }
  Message posted = receiving(0, 9, 10), asking = sending(1, 8, 500, 1), big = sending(1, 2, 500, 1), into = receiving(0, 2, 500);
  Message small = sending(1, 3, 100, 1), queued = sending(1, 4, 100, 1), taker = receiving(0, 3, 100);
  ranks[1].post(posted.op);
  ranks[0].post(asking.op);
  ranks.settle();
  ranks[1].post(into.op);
  ranks[0].post(big.op);
  for (int i = 0; i < 4; ++i) ranks[0].progress(), ranks[1].progress();
  ranks[0].post(small.op);
  ranks[0].post(queued.op);
  ranks[1].post(taker.op);
  CHECK(big.pending() && into.pending());
  hccl_py::Failure why;
  why.kind = FailureKind::timeout;
  ranks[0].fail_all(why);
  ranks[1].fail_all(why);
  for (const Message* m : {&posted, &asking, &big, &into, &small, &queued, &taker}) CHECK(m->failed(FailureKind::timeout));
  CHECK(!ranks[0].busy() && !ranks[1].busy());
}

// Any traffic among three ranks, posted in any order: whoever receives (source, tag) gets its messages in order.
void test_random_traffic() {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    Ranks ranks(3, 100 + random() % 400, 1 + random() % 90);
    struct Post {
      std::uint32_t rank;
      std::unique_ptr<Message> message;
      int fill;  // receives: what must come
    };
    std::deque<Post> sends, receives, posted;
    for (int i = 0; i < 60; ++i) {
      const std::uint32_t from = random() % 3, to = random() % 3;
      const std::uint64_t tag = random() % 3;
      const std::size_t bytes = random() % 4 == 0 ? random() % 3000 : random() % 120;
      sends.push_back({from, std::make_unique<Message>(Op::Kind::send, static_cast<int>(to), tag, bytes, i + 1), 0});
      receives.push_back({to, std::make_unique<Message>(Op::Kind::recv, static_cast<int>(from), tag, bytes), i + 1});
    }
    while (!sends.empty() || !receives.empty()) {
      std::deque<Post>& queue = receives.empty() || (!sends.empty() && random() % 2 == 0) ? sends : receives;
      ranks[queue.front().rank].post(queue.front().message->op);
      posted.push_back(std::move(queue.front()));
      queue.pop_front();
      for (std::uint32_t k = random() % 4; k > 0; --k) ranks[random() % 3].progress();
    }
    ranks.settle();
    for (const Post& post : posted) {
      CHECK(post.message->done());
      if (post.fill != 0) CHECK(post.message->holds(post.fill));
    }
    for (const std::uint32_t rank : {0u, 1u, 2u}) CHECK(!ranks[rank].busy() && !ranks[rank].bad_news());
  }
}

}  // namespace

int main() {
  return run_tests({
      {"messages arrive", test_messages_arrive},
      {"large messages are lent", test_large_messages_are_lent},
      {"a loan that was taken outlives a goodbye", test_a_loan_that_was_taken_outlives_a_goodbye},
      {"loans that end badly", test_loans_that_end_badly},
      {"order within a tag", test_order_within_a_tag},
      {"tags and peers select", test_tags_and_peers_select},
      {"any source takes the oldest", test_any_source_takes_the_oldest},
      {"receive in the middle of arrival", test_receive_in_the_middle_of_arrival},
      {"wrong lengths fail the receive only", test_wrong_lengths_fail_the_receive_only},
      {"messages to oneself", test_messages_to_oneself},
      {"a send is over when nothing is held back", test_a_send_is_over_when_nothing_is_held_back},
      {"bad news travel", test_bad_news_travel},
      {"wrong frames are bad news", test_wrong_frames_are_bad_news},
      {"data of another length than announced", test_data_of_another_length_than_announced},
      {"pipes that end are bad news", test_pipes_that_end_are_bad_news},
      {"who said goodbye is missed only where needed", test_who_said_goodbye_is_missed_only_where_needed},
      {"fail_all fails what is left", test_fail_all_fails_what_is_left},
      {"random traffic", test_random_traffic},
  });
}
