// SPDX-License-Identifier: Apache-2.0
// What the engine adds to the exchange of 8 bytes between two ranks of one host: a hand-written all-reduce (a cache
// line a rank, payload and flag together, spinning) against Group, with the contract check, in turns in one run. Prints one
// line of JSON: medians in nanoseconds a call. Wants two idle cores.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "team.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;
using Clock = std::chrono::steady_clock;

struct alignas(64) Line {
  std::atomic<std::uint64_t> sequence{0};
  std::int32_t payload[2] = {};
};

// By parity, as on the board: a rank writes line s+2 only after its peer has entered s+1, so after it has read s.
struct Exchange {
  Line lines[2][2];
  void run(std::uint32_t rank, std::uint64_t sequence, const std::int32_t* in, std::int32_t* out) {
    Line& mine = lines[rank][sequence & 1];
    Line& theirs = lines[1 - rank][sequence & 1];
    mine.payload[0] = in[0];
    mine.payload[1] = in[1];
    mine.sequence.store(sequence, std::memory_order_release);
    while (theirs.sequence.load(std::memory_order_acquire) != sequence) cpu_relax();
    out[0] = in[0] + theirs.payload[0];
    out[1] = in[1] + theirs.payload[1];
  }
};

double per_call_ns(Clock::time_point began, int calls) {
  return std::chrono::duration<double, std::nano>(Clock::now() - began).count() / calls;
}

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int samples = argc > 1 ? std::atoi(argv[1]) : 31, calls = argc > 2 ? std::atoi(argv[2]) : 5000;
  GroupOptions options = patient();
  options.usable_cpus = 2;
  Team team(Over::shm, 2, options);
  Exchange exchange;
  constexpr int kKinds = 3;
  std::vector<double> times[kKinds];
  in_ranks(2, [&](std::uint32_t rank) {
    const Numbers input = {1, 2};
    Numbers output(2);
    std::uint64_t sequence = 0;
    const Call call = call_of(Collective::all_reduce, input, output, 2);
    const auto by_hand = [&] { exchange.run(rank, ++sequence, input.data(), output.data()); };
    const auto by_group = [&] { run_now(team[rank], call); };
    Op op;
    op.call = call;
    CHECK(team[rank].prepare(op));
    team[rank].settle(op);
    const auto prepared = [&] {
      op.state.store(Op::State::pending, std::memory_order_relaxed);
      team[rank].check_usable();
      team[rank].run_now(op);
    };
    const auto sample = [&](auto&& run) {
      for (int i = 0; i < 100; ++i) run();  // into step
      const auto began = Clock::now();
      for (int i = 0; i < calls; ++i) run();
      return per_call_ns(began, calls);
    };
    for (int i = 0; i < samples; ++i)
      for (int k = 0; k < kKinds; ++k) {
        const int which = i % 2 == 0 ? k : kKinds - 1 - k;
        const double ns = which == 0 ? sample(by_hand) : which == 1 ? sample(by_group) : sample(prepared);
        if (rank == 0) times[which].push_back(ns);
      }
    CHECK_EQ(output[0], 2);
  });
  std::printf("{\"hand_written_ns\": %.1f, \"engine_ns\": %.1f, \"prepared_ns\": %.1f, \"n\": %d, \"calls\": %d}\n",
              median(times[0]), median(times[1]), median(times[2]), samples, calls);
}
