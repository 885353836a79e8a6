// SPDX-License-Identifier: Apache-2.0
// All-reduces by the board, each rank folding its share: any size, in place and not, between calls that go other ways, after
// a mismatch, from memory that peers can reach, and with a rank that leaves in the middle.
#include <algorithm>
#include <cmath>
#include <latch>

#include "hccl_py/error.hpp"
#include "team.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr Over kLocal[] = {Over::loopback, Over::shm};

// From 32 bytes on, by shares. The program itself is a ring: by messages it would stage less than a whole piece.
void use_shares(Team& team) {
  for (std::uint32_t r = 0; r < team.world(); ++r) {
    Writer ring = ring_all_reduce(team.world(), r);
    ring.header.flags |= kFlagSharedFold;
    const std::uint32_t one_round = team[r].load_program(direct_all_reduce(team.world(), r, true).bytes());
    team[r].set_table(Collective::all_reduce, 0, false, {31, ~std::uint64_t{0}}, {one_round, team[r].load_program(ring.bytes())});
  }
}

void in_place_now(Group& group, std::size_t count, std::int32_t salt) {
  Numbers both = numbers(group.rank(), count, salt);
  run_now(group, call_of(Collective::all_reduce, both, both, count));
  CHECK(both == sum_of(group.world(), count, salt));
}

void check_gathered(Group& group, std::size_t count) {
  const Numbers input = numbers(group.rank(), count);
  Numbers gathered(group.world() * count, -1), expected;
  for (std::uint32_t r = 0; r < group.world(); ++r) {
    const Numbers one = numbers(r, count);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  run_now(group, call_of(Collective::all_gather, input, gathered, count));
  CHECK(gathered == expected);
}

// Pieces of 1,024 numbers; fewer numbers than ranks; one in the line, one in the slot and messages in between.
void test_any_size() {
  for (const Over over : kLocal)
    for (const std::uint32_t n : {3u, 5u}) {
      Team team(over, n);
      use_shares(team);
      team.run([&](std::uint32_t r) {
        std::int32_t salt = 0;
        for (const std::size_t count : {8, 1, 9, 1023, 1024, 7, 1025, 2048, 3000, 2, 100, 10'000, 4096, 0, 20'001}) {
          all_reduce_now(team[r], count, ++salt);
          in_place_now(team[r], count, ++salt);
          if (count % 3 == 0) check_gathered(team[r], count);
        }
      });
    }
}

void test_the_average_scales_each_contribution() {
  Team team(Over::shm, 3);
  use_shares(team);
  team.run([&](std::uint32_t r) {
    std::vector<float> input(2500, static_cast<float>(r) + 0.1f), output(2500);
    Call call;
    call.collective = Collective::all_reduce;
    call.op = ReduceOp::avg;
    call.dtype = DType::float32;
    call.input = reinterpret_cast<const std::byte*>(input.data());
    call.output = reinterpret_cast<std::byte*>(output.data());
    call.count = input.size();
    run_now(team[r], call);
    for (const float value : output) CHECK(std::abs(value - 1.1f) < 1e-6f);
  });
}

// What is read and written, and that it goes this way at all: two pieces of 1,024 numbers, three ranks.
void test_traffic() {
  Team team(Over::shm, 3);
  use_shares(team);
  team.run([&](std::uint32_t r) {
    all_reduce_now(team[r], 2048);
    const std::uint64_t all = 2048 * 4, share = 2 * 4 * (slot_begin(1024, 3, r + 1) - slot_begin(1024, 3, r)), others = all - share;
    const Traffic& found = team[r].traffic();
    CHECK_EQ(found.staged, others + share);
    CHECK_EQ(found.written, others + 2 * share + others);
    CHECK_EQ(found.read, others + 3 * share + share + others);
  });
}

// All fail, none is left with what another one published in the call that failed: with memory that peers can reach a rank
// publishes late, so what it published before must not count.
void test_after_a_mismatch() {
  for (const bool shared : {false, true}) {
    Team team(Over::shm, 3);
    use_shares(team);
    team.run([&](std::uint32_t r) {
      const auto segment = Segment::allocate(64 * 1024);
      if (shared && r == 1) team[r].share(segment);
      auto* memory = reinterpret_cast<std::int32_t*>(segment->data());
      for (std::int32_t round = 0; round < 6; ++round) {
        const std::size_t count = round % 2 == 0 && r == 2 ? 2001 : 2000;
        Numbers input = numbers(r, count, round), output(count, -1);
        Call call = call_of(Collective::all_reduce, input, output, count);
        if (shared && r == 1) call.output = segment->data();
        const std::string error = error_of<DesyncError>([&] { run_now(team[r], call); });
        CHECK_EQ(error.empty(), round % 2 == 1);
        if (shared && r == 1) output.assign(memory, memory + count);
        if (error.empty()) CHECK(output == sum_of(3, count, round));
      }
    });
  }
}

// Memory that all can reach needs no slots; where one rank has private memory, all go by the slots.
void test_shared_memory_goes_by_loan_if_all_have_it() {
  for (const std::uint32_t with : {2u, 3u}) {
    GroupOptions options = patient();
    options.shm.shared_from_bytes = 1024;
    Team team(Over::shm, 3, options);
    use_shares(team);
    for (std::uint32_t r = 0; r < 3; ++r) {  // a program of two rounds, as it is used: it may lend
      Writer direct = two_round_all_reduce(3, r);
      direct.header.flags |= kFlagSharedFold | static_cast<std::uint32_t>(Lends::always) << kLendsShift;
      team[r].set_table(Collective::all_reduce, 0, false, {0}, {team[r].load_program(direct.bytes())});
    }
    team.run([&](std::uint32_t r) {
      const auto segment = Segment::allocate(64 * 1024);
      if (r < with) team[r].share(segment);
      Numbers own(9000);
      std::byte* memory = r < with ? segment->data() : reinterpret_cast<std::byte*>(own.data());
      for (const std::size_t count : {9000, 300, 6000}) {  // 300: shares of less than 1,024 bytes go by the slots all the same
        const Numbers given = numbers(r, count);
        std::copy(given.begin(), given.end(), reinterpret_cast<std::int32_t*>(memory));
        Numbers nothing;
        Call call = call_of(Collective::all_reduce, nothing, nothing, count);
        call.input = memory;
        call.output = memory;
        run_now(team[r], call);
        const auto* sums = reinterpret_cast<const std::int32_t*>(memory);
        CHECK(Numbers(sums, sums + count) == sum_of(3, count));
        CHECK_EQ(team[r].traffic().staged == 0, with == 3 && count != 300);
      }
    });
  }
}

void test_who_leaves_in_the_middle_is_named() {
  for (const Over over : kLocal) {
    Team team(over, 3);
    use_shares(team);
    std::latch entered(1);
    team.run([&](std::uint32_t r) {
      Numbers input = numbers(r, 5000), output(5000);
      const Call call = call_of(Collective::all_reduce, input, output, 5000);
      if (r == 2) {
        const auto op = start(team[r], call);
        team[r].close();
        entered.count_down();
        CHECK(op->state.load() == Op::State::failed);
        return;
      }
      entered.wait();
      const std::string error = error_of<PeerLostError>([&] { run_now(team[r], call); });
      CHECK(error.find("rank 2") != std::string::npos);
    });
  }
}

}  // namespace

int main() {
  return run_tests({
      {"any size", test_any_size},
      {"the average scales each contribution", test_the_average_scales_each_contribution},
      {"traffic", test_traffic},
      {"after a mismatch", test_after_a_mismatch},
      {"shared memory goes by loan if all have it", test_shared_memory_goes_by_loan_if_all_have_it},
      {"who leaves in the middle is named", test_who_leaves_in_the_middle_is_named},
  });
}
