// SPDX-License-Identifier: Apache-2.0
// The executor: small programs over loopback and over awkward pipes, all ranks driven in turn by one thread; and what it
// says of frames that are wrong, pipes that end and peers that it waits for.
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/executor.hpp"
#include "hccl_py/loopback.hpp"
#include "pipes.hpp"
#include "programs.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr std::uint32_t kChannels = 2;
constexpr std::uint32_t kCommunicator = 77;

// The ports of all ranks of a world, wired by hand.
class Wires {
 public:
  virtual ~Wires() = default;
  virtual SendPipe& send(std::uint32_t from, std::uint32_t to, std::uint32_t channel) = 0;
  virtual RecvPipe& recv(std::uint32_t from, std::uint32_t to, std::uint32_t channel) = 0;
};

class HubWires final : public Wires {
 public:
  explicit HubWires(std::uint32_t world) : hub_(world, 64, kChannels) {}
  SendPipe& send(std::uint32_t from, std::uint32_t to, std::uint32_t channel) override { return hub_.send_pipe(from, to, channel); }
  RecvPipe& recv(std::uint32_t from, std::uint32_t to, std::uint32_t channel) override { return hub_.recv_pipe(from, to, channel); }

 private:
  Hub hub_;
};

class AwkwardWires final : public Wires {
 public:
  explicit AwkwardWires(std::uint32_t world, std::size_t capacity = 200, std::size_t chunk = 13) : world_(world) {
    for (std::uint32_t i = 0; i < world * world * kChannels; ++i) pipes_.push_back(std::make_unique<AwkwardPipe>(capacity, chunk));
  }
  AwkwardPipe& pipe(std::uint32_t from, std::uint32_t to, std::uint32_t channel = 0) { return *pipes_[(from * world_ + to) * kChannels + channel]; }
  SendPipe& send(std::uint32_t from, std::uint32_t to, std::uint32_t channel) override { return pipe(from, to, channel); }
  RecvPipe& recv(std::uint32_t from, std::uint32_t to, std::uint32_t channel) override { return pipe(from, to, channel); }

 private:
  std::uint32_t world_;
  std::vector<std::unique_ptr<AwkwardPipe>> pipes_;
};

struct Rank {
  std::unique_ptr<Ports> ports;
  Scratch scratch;
  std::unique_ptr<Executor> executor;
  std::vector<std::int32_t> input, output;
  Call call;
  Executor::Outcome outcome = Executor::Outcome::idle;
};

Fingerprint fingerprint(const Call& call, std::uint64_t sequence) {
  Fingerprint f;
  f.sequence = sequence;
  f.collective = static_cast<std::uint8_t>(call.collective);
  f.dtype = static_cast<std::uint8_t>(call.dtype);
  f.count = call.count;
  f.plan_digest = 0x1234;
  return f;
}

class World {
 public:
  World(std::uint32_t world, Wires& wires, const std::function<Writer(std::uint32_t)>& program, std::uint64_t count, bool in_place = false,
        bool remote = false, std::size_t segment_bytes = 64)
      : ranks_(world) {
    for (std::uint32_t r = 0; r < world; ++r) {
      Rank& rank = ranks_[r];
      rank.ports = std::make_unique<Ports>(world, kChannels);
      for (std::uint32_t p = 0; p < world; ++p)
        for (std::uint16_t c = 0; c < kChannels && p != r; ++c) {
          rank.ports->send(p, c) = {&wires.send(r, p, c), p, c, remote};
          rank.ports->recv(p, c) = {&wires.recv(p, r, c), p, c, remote};
        }
      Program loaded = program(r).program();
      const ProgramHeader h = loaded.header();
      rank.executor = std::make_unique<Executor>(std::move(loaded), *rank.ports, rank.scratch, segment_bytes, kCommunicator);
      rank.input.resize(h.input_blocks * count);
      rank.output.assign(h.output_blocks * count, -1);
      for (std::size_t i = 0; i < rank.input.size(); ++i) rank.input[i] = value(r, i);
      rank.call.collective = static_cast<Collective>(h.collective);
      rank.call.dtype = DType::int32;
      rank.call.count = count;
      rank.call.input = reinterpret_cast<const std::byte*>(rank.input.data());
      rank.call.output = reinterpret_cast<std::byte*>(rank.output.data());
      if (!in_place) continue;
      const std::size_t before = h.collective == static_cast<std::uint8_t>(Collective::all_gather) ? r * count : 0;
      std::copy(rank.input.begin(), rank.input.end(), rank.output.begin() + static_cast<std::ptrdiff_t>(before));
      rank.call.input = rank.call.output + before * sizeof(std::int32_t);
    }
  }

  static std::int32_t value(std::uint32_t rank, std::size_t i) { return static_cast<std::int32_t>(1000 * (rank + 1) + i % 997); }

  Rank& operator[](std::uint32_t rank) { return ranks_[rank]; }

  void begin(std::uint64_t sequence) {
    for (Rank& rank : ranks_) {
      rank.outcome = Executor::Outcome::idle;
      CHECK(rank.executor->begin(rank.call, fingerprint(rank.call, sequence)));
    }
  }
  // One pass of one rank; true if it is not over after that.
  static bool step(Rank& rank) {
    if (rank.outcome == Executor::Outcome::done || rank.outcome == Executor::Outcome::failed) return false;
    rank.outcome = rank.executor->advance();
    return rank.outcome == Executor::Outcome::moved || rank.outcome == Executor::Outcome::idle;
  }
  // Until all are over; a pass in which nobody moves is a deadlock.
  void run(std::uint64_t sequence) {
    begin(sequence);
    for (bool open = true; open;) {
      open = false;
      bool moved = false;
      for (Rank& rank : ranks_) {
        open |= step(rank);
        moved |= rank.outcome != Executor::Outcome::idle;
      }
      CHECK(moved);
    }
    for (Rank& rank : ranks_) {
      if (rank.outcome == Executor::Outcome::failed) fail(__FILE__, __LINE__, "failed: " + rank.executor->failure().text);
      CHECK_EQ(rank.executor->waiting_for(), -1);
    }
  }

 private:
  std::vector<Rank> ranks_;
};

void check_all_reduce(World& world, std::uint32_t n, std::uint64_t count) {
  for (std::uint32_t r = 0; r < n; ++r)
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t sum = 0;
      for (std::uint32_t p = 0; p < n; ++p) sum += World::value(p, i);
      CHECK_EQ(world[r].output[i], sum);
    }
}

using Make = std::function<Writer(std::uint32_t, std::uint32_t)>;

// Over each kind of wire, in place or not, on one host or not: counts around slots, segments and pipes.
void check_everywhere(const Make& make, const std::function<void(World&, std::uint32_t, std::uint64_t)>& check) {
  for (const std::uint32_t n : {2u, 3u})
    for (const std::uint64_t count : {0u, 1u, 2u, 3u, 100u, 1000u})
      for (const bool in_place : {false, true})
        for (const bool remote : {false, true})
          for (const bool awkward : {false, true}) {
            std::unique_ptr<Wires> wires;
            if (awkward)
              wires = std::make_unique<AwkwardWires>(n);
            else
              wires = std::make_unique<HubWires>(n);
            World world(n, *wires, [&](std::uint32_t rank) { return make(n, rank); }, count, in_place, remote);
            world.run(5);
            check(world, n, count);
          }
}

void test_direct_all_reduce() {
  check_everywhere([](std::uint32_t n, std::uint32_t r) { return direct_all_reduce(n, r); }, check_all_reduce);
}

void test_ring_all_reduce() {
  check_everywhere([](std::uint32_t n, std::uint32_t r) { return ring_all_reduce(n, r); }, check_all_reduce);
}

void test_all_gather() {
  check_everywhere([](std::uint32_t n, std::uint32_t r) { return direct_all_gather(n, r); },
                   [](World& world, std::uint32_t n, std::uint64_t count) {
                     for (std::uint32_t r = 0; r < n; ++r)
                       for (std::size_t i = 0; i < n * count; ++i)
                         CHECK_EQ(world[r].output[i], World::value(static_cast<std::uint32_t>(i / count), i % count));
                   });
}

void test_all_to_all() {
  check_everywhere([](std::uint32_t n, std::uint32_t r) { return direct_all_to_all(n, r); },
                   [](World& world, std::uint32_t n, std::uint64_t count) {
                     for (std::uint32_t r = 0; r < n; ++r)
                       for (std::size_t i = 0; i < n * count; ++i)
                         CHECK_EQ(world[r].output[i], World::value(static_cast<std::uint32_t>(i / count), r * count + i % count));
                   });
}

void test_broadcast_and_barrier() {
  for (const std::uint64_t count : {0u, 5u, 5000u}) {
    AwkwardWires wires(3);
    World world(3, wires, [](std::uint32_t r) { return flat_broadcast(3, r, 0); }, count);
    world.run(1);
    for (std::uint32_t r = 0; r < 3; ++r)
      for (std::size_t i = 0; i < count; ++i) CHECK_EQ(world[r].output[i], World::value(0, i));
  }
  AwkwardWires wires(3);
  World world(3, wires, [](std::uint32_t r) { return flat_barrier(3, r); }, 0);
  world.run(1);
}

// A fold of two peers straight to a third: bytes are made in the pipe itself.
void test_fold_into_a_pipe() {
  for (const bool awkward : {false, true})
    for (const std::uint64_t count : {0u, 1u, 777u}) {
      std::unique_ptr<Wires> wires = std::make_unique<HubWires>(3);
      if (awkward) wires = std::make_unique<AwkwardWires>(3, 150, 5);
      const auto program = [](std::uint32_t r) {
        Writer w(Collective::reduce, 3, r, 2);
        if (r == 0) w.step({in(0)}, {peer(1)});
        if (r == 1) w.step({raw(peer(0)), in(0)}, {peer(2)});
        if (r == 2) w.step({peer(1), in(0)}, {out(0)});
        return w;
      };
      World world(3, *wires, program, count);
      world.run(9);
      for (std::size_t i = 0; i < count; ++i)
        CHECK_EQ(world[2].output[i], World::value(0, i) + World::value(1, i) + World::value(2, i));
    }
}

void test_scratch_holds_what_is_on_its_way() {
  AwkwardWires wires(2);
  const auto program = [](std::uint32_t r) {
    Writer w(Collective::all_reduce, 2, r, 0, 2);
    w.add_scratch(Where::input, 0).add_scratch(Where::input, 1);
    w.step({in(0, 2)}, {peer(1 - r)});
    w.step({raw(peer(1 - r))}, {scratch(0, 2)});
    w.step({in(0), raw(scratch(0))}, {out(0)});
    w.step({raw(scratch(1)), in(1)}, {out(1)});
    return w;
  };
  for (const bool in_place : {false, true}) {
    World world(2, wires, program, 1001, in_place);
    world.run(3);
    check_all_reduce(world, 2, 1001);
  }
}

// More steps than the window, messages of both channels, many runs on the same pipes: they stay in step.
void test_many_steps_and_many_runs() {
  const auto program = [](std::uint32_t r) {
    Writer w(Collective::all_reduce, 2, r, 0, 100);
    for (std::uint32_t k = 0; k < 100; ++k) w.step({in(k)}, {peer(1 - r, static_cast<std::uint16_t>(k % 2))});
    for (std::uint32_t k = 0; k < 100; ++k) w.step({in(k), raw(peer(1 - r, static_cast<std::uint16_t>(k % 2)))}, {out(k)});
    return w;
  };
  AwkwardWires wires(2, 4096, 64);
  World world(2, wires, program, 950);
  for (std::uint64_t sequence = 1; sequence <= 5; ++sequence) {
    for (std::uint32_t r = 0; r < 2; ++r) std::fill(world[r].output.begin(), world[r].output.end(), -1);
    world.run(sequence);
    check_all_reduce(world, 2, 950);
  }
}

// One rank is a whole collective ahead: the other's pipes hold messages of the next one.
void test_a_peer_may_be_a_collective_ahead() {
  HubWires wires(2);
  World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 10);
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    CHECK(world[0].executor->begin(world[0].call, fingerprint(world[0].call, sequence)));
    while (world[0].executor->advance() != Executor::Outcome::done) {
    }
  }
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    CHECK(world[1].executor->begin(world[1].call, fingerprint(world[1].call, sequence)));
    while (world[1].executor->advance() != Executor::Outcome::done) {
    }
    CHECK_EQ(world[1].output[9], World::value(0, 9));
  }
}

void test_uneven_blocks() {
  AwkwardWires wires(3);
  const std::vector<std::uint64_t> counts{5, 0, 300};
  World world(3, wires, [](std::uint32_t r) { return direct_all_gather(3, r); }, 305);
  for (std::uint32_t r = 0; r < 3; ++r) {
    world[r].call.count = counts[r];
    world[r].call.output_counts = counts.data();
  }
  world.run(1);
  for (std::uint32_t r = 0; r < 3; ++r) {
    CHECK_EQ(world[r].output[4], World::value(0, 4));
    CHECK_EQ(world[r].output[5], World::value(2, 0));
    CHECK_EQ(world[r].output[304], World::value(2, 299));
  }
}

// What does not fit is refused before anything moves.
void test_counts_that_do_not_fit_fail_at_once() {
  AwkwardWires wires(2);
  World world(2, wires, [](std::uint32_t r) { return direct_all_gather(2, r); }, 10);
  const std::uint64_t counts[] = {3, 4};
  world[0].call.output_counts = counts;
  CHECK(!world[0].executor->begin(world[0].call, fingerprint(world[0].call, 1)));
  CHECK(world[0].executor->failure().kind == FailureKind::internal);
  CHECK_EQ(wires.pipe(0, 1).size(), 0u);
}

// Done means: nothing is held back in a pipe.
void test_done_waits_for_the_flush() {
  AwkwardWires wires(2, 10000, 10000);
  World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 10);
  wires.pipe(0, 1).holds_back = true;
  world.begin(1);
  for (int i = 0; i < 5; ++i) CHECK(World::step(world[0]));
  wires.pipe(0, 1).holds_back = false;
  CHECK(!World::step(world[0]));
  CHECK(world[0].outcome == Executor::Outcome::done);
}

// Rank 1 of a broadcast receives a frame made by `spoil`; how does it fail?
hccl_py::Failure failure_on(const std::function<void(FrameHeader&)>& spoil, bool remote = false, const std::function<void(Fingerprint&)>& disagree = {}) {
  AwkwardWires wires(2, 10000, 10000);
  World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 4, false, remote);
  world.begin(5);
  FrameHeader header;
  header.communicator = kCommunicator;
  header.sequence_or_tag = 5;
  header.plan_digest = 0x1234;
  header.length = 16;
  if (remote) header.flags = kFrameHasFingerprint;
  spoil(header);
  std::array<std::byte, kFrameHeaderBytes + kFingerprintBytes> head;
  encode(header, std::span<std::byte, kFrameHeaderBytes>(head.data(), kFrameHeaderBytes));
  Fingerprint theirs = fingerprint(world[1].call, 5);
  if (disagree) disagree(theirs);
  encode(theirs, std::span<std::byte, kFingerprintBytes>(head.data() + kFrameHeaderBytes, kFingerprintBytes));
  const std::size_t size = (header.flags & kFrameHasFingerprint) != 0 ? head.size() : kFrameHeaderBytes;
  wires.pipe(0, 1).write(std::span<const std::byte>(head).first(size), std::as_bytes(std::span(world[0].input)), false);
  for (int i = 0; i < 3 && World::step(world[1]); ++i) {
  }
  return world[1].executor->failure();
}

void test_wrong_frames() {
  CHECK(!failure_on([](FrameHeader&) {}));
  CHECK(!failure_on([](FrameHeader&) {}, true));
  for (const bool remote : {false, true}) {
    CHECK(failure_on([](FrameHeader& h) { h.magic ^= 1; }, remote).kind == FailureKind::transport);
    CHECK(failure_on([](FrameHeader& h) { h.version = 9; }, remote).kind == FailureKind::transport);
    const hccl_py::Failure other_call = failure_on([](FrameHeader& h) { h.sequence_or_tag = 6; }, remote);
    CHECK(other_call.kind == FailureKind::desync);
    CHECK_EQ(other_call.culprit, 0);
    CHECK_EQ(other_call.step, 0);
    CHECK_EQ(other_call.sequence, 5u);
    CHECK(other_call.text.find("#6") != std::string::npos);
    CHECK(failure_on([](FrameHeader& h) { h.plan_digest = 1; }, remote).kind == FailureKind::desync);
    CHECK(failure_on([](FrameHeader& h) { h.communicator = 1; }, remote).kind == FailureKind::desync);
    CHECK(failure_on([](FrameHeader& h) { h.step = 1; }, remote).kind == FailureKind::desync);
    CHECK(failure_on([](FrameHeader& h) { h.kind = FrameKind::p2p_eager; }, remote).kind == FailureKind::desync);
    CHECK(failure_on([](FrameHeader& h) { h.flags ^= kFrameHasFingerprint; }, remote).kind == FailureKind::desync);
    const hccl_py::Failure other_length = failure_on([](FrameHeader& h) { h.length = 12; }, remote);
    CHECK(other_length.kind == FailureKind::desync);
    CHECK(other_length.text.find("16 bytes") != std::string::npos && other_length.text.find("12") != std::string::npos);
    // What the other runs is not known then: nothing may be invented.
    CHECK_EQ(other_length.theirs.sequence, 0u);
  }
  const hccl_py::Failure other_type = failure_on([](FrameHeader&) {}, true, [](Fingerprint& f) { f.dtype = static_cast<std::uint8_t>(DType::float64); });
  CHECK(other_type.kind == FailureKind::desync);
  CHECK_EQ(other_type.theirs.sequence, 5u);
  CHECK(other_type.theirs.dtype == static_cast<std::uint8_t>(DType::float64));
}

void test_pipes_that_end() {
  for (const PipeState how : {PipeState::closed, PipeState::failed}) {
    // Before a header, within one, within a fingerprint, within a payload.
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{10}, std::size_t{70}, std::size_t{200}}) {
      AwkwardWires wires(2, 10000, 10000);
      World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 1000, false, true);
      world.begin(1);
      CHECK(World::step(world[1]));
      World::step(world[0]);
      std::vector<std::byte> sent(bytes);
      std::ranges::copy(wires.pipe(0, 1).peek(bytes), sent.begin());
      wires.pipe(0, 1).consume(wires.pipe(0, 1).size());
      wires.pipe(0, 1).write(sent, {}, false);
      while (World::step(world[1]) && world[1].outcome == Executor::Outcome::moved) {
      }
      wires.pipe(0, 1).end(how);  // what lies there is the beginning of something that never comes
      while (World::step(world[1])) {
      }
      CHECK(world[1].executor->failure().kind == FailureKind::peer_lost);
      CHECK_EQ(world[1].executor->failure().culprit, 0);
    }
    // While sending, and while folding into a pipe.
    AwkwardWires wires(2);
    World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 1000);
    world.begin(1);
    World::step(world[0]);
    wires.pipe(0, 1).consume(wires.pipe(0, 1).size());
    wires.pipe(0, 1).end(how);
    while (World::step(world[0])) {
    }
    CHECK(world[0].executor->failure().kind == FailureKind::peer_lost);
    CHECK_EQ(world[0].executor->failure().culprit, 1);
  }
}

// All sources of a fold move together; the one to blame is the one that does not deliver, not the first.
void test_it_waits_for_the_peer_that_is_late() {
  AwkwardWires wires(3, 10000, 10000);
  World world(3, wires, [](std::uint32_t r) { return direct_all_reduce(3, r); }, 10);
  world.begin(1);
  CHECK(World::step(world[0]));
  CHECK_EQ(world[0].executor->waiting_for(), 1);
  CHECK_EQ(world[0].executor->waiting_for(2), 2);
  World::step(world[1]);
  CHECK(World::step(world[0]));
  CHECK_EQ(world[0].executor->waiting_for(), 2);
  CHECK_EQ(world[0].executor->waiting_for(1), -1);
  World::step(world[2]);
  CHECK(!World::step(world[0]));
  CHECK_EQ(world[0].executor->waiting_for(), -1);
}

// A step that is not the first may be the one that waits for a lost peer.
void test_it_waits_for_peers_of_any_open_step() {
  AwkwardWires wires(3);
  World world(3, wires,
              [](std::uint32_t r) {
                Writer w(Collective::all_gather, 3, r);
                if (r == 0) w.step({peer(1)}, {out(1)}).step({peer(2)}, {out(2)});
                return w;
              },
              10);
  world.begin(1);
  CHECK(World::step(world[0]));
  CHECK_EQ(world[0].executor->waiting_for(), 1);
  CHECK_EQ(world[0].executor->waiting_for(2), 2);
}

// A socket's buffer has room for a byte, and the socket takes none of what is due.
void test_it_waits_for_who_takes_too_little() {
  AwkwardWires wires(2);
  World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 1000);
  world.begin(1);
  World::step(world[0]);
  wires.pipe(0, 1).consume(wires.pipe(0, 1).size());
  wires.pipe(0, 1).blocked = true;
  World::step(world[0]);
  CHECK_EQ(world[0].executor->waiting_for(), 1);
  CHECK_EQ(world[0].executor->waiting_for(1), -1);

  AwkwardWires roomy(2, 10000, 10000);
  World all_taken(2, roomy, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 1000);
  roomy.pipe(0, 1).holds_back = true;  // all is taken, nothing is gone
  all_taken.begin(1);
  while (World::step(all_taken[0]) && all_taken[0].outcome == Executor::Outcome::moved) {
  }
  CHECK(all_taken[0].outcome == Executor::Outcome::idle);
  CHECK_EQ(all_taken[0].executor->waiting_for(), 1);
}

void test_it_waits_for_room() {
  AwkwardWires wires(2, 100, 100);
  World world(2, wires, [](std::uint32_t r) { return flat_broadcast(2, r, 0); }, 1000);
  world.begin(1);
  CHECK_EQ(world[0].executor->waiting_for(1), -1);
  while (World::step(world[0]) && world[0].outcome == Executor::Outcome::moved) {
  }
  CHECK_EQ(world[0].executor->waiting_for(1), 1);
}

void test_programs_that_need_too_much_are_refused() {
  Ports ports(2, 1);
  Scratch scratch;
  const auto refused = [&](const Writer& w) {
    try {
      Executor(w.program(), ports, scratch, 64, 0);
    } catch (const PlanError&) {
      return true;
    }
    return false;
  };
  Writer channels = flat_broadcast(2, 0);
  CHECK(refused(channels));  // two channels
  channels.header.num_channels = 1;
  CHECK(!refused(channels));
  Writer folds = flat_broadcast(2, 0);
  folds.header.num_channels = 1;
  folds.step({in(0), in(0)}, {out(0)});
  CHECK(refused(folds));
}

}  // namespace

int main() {
  return run_tests({
      {"direct all_reduce", test_direct_all_reduce},
      {"ring all_reduce", test_ring_all_reduce},
      {"all_gather", test_all_gather},
      {"all_to_all", test_all_to_all},
      {"broadcast and barrier", test_broadcast_and_barrier},
      {"fold into a pipe", test_fold_into_a_pipe},
      {"scratch holds what is on its way", test_scratch_holds_what_is_on_its_way},
      {"many steps and many runs", test_many_steps_and_many_runs},
      {"a peer may be a collective ahead", test_a_peer_may_be_a_collective_ahead},
      {"uneven blocks", test_uneven_blocks},
      {"counts that do not fit fail at once", test_counts_that_do_not_fit_fail_at_once},
      {"done waits for the flush", test_done_waits_for_the_flush},
      {"wrong frames", test_wrong_frames},
      {"pipes that end", test_pipes_that_end},
      {"it waits for the peer that is late", test_it_waits_for_the_peer_that_is_late},
      {"it waits for peers of any open step", test_it_waits_for_peers_of_any_open_step},
      {"it waits for who takes too little", test_it_waits_for_who_takes_too_little},
      {"it waits for room", test_it_waits_for_room},
      {"programs that need too much are refused", test_programs_that_need_too_much_are_refused},
  });
}
