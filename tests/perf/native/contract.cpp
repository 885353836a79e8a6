// SPDX-License-Identifier: Apache-2.0
// An all-reduce between two ranks, 8 B over shared memory or 1 KiB over TCP, again and again; prints nanoseconds a call,
// one sample a line. Compiled twice, over the engine with and without the contract check; tests/perf/torch_bench.py runs
// the two in turns. Usage: bench_contract_checked shm|tcp SAMPLES CALLS
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const bool over_tcp = std::string(argv[1]) == "tcp";
  const int samples = std::atoi(argv[2]), calls = std::atoi(argv[3]);
  const std::uint64_t count = over_tcp ? 256 : 2;  // of int32
  GroupOptions options = patient();
  options.usable_cpus = 2;
  Team team(over_tcp ? Over::tcp : Over::shm, 2, options);
  std::vector<double> times;
  in_ranks(2, [&](std::uint32_t rank) {
    Numbers input(count, static_cast<std::int32_t>(rank + 1)), output(count);
    const Call call = call_of(Collective::all_reduce, input, output, count);
    for (int i = 0; i < samples; ++i) {
      for (int k = 0; k < 50; ++k) run_now(team[rank], call);  // into step
      const auto began = Clock::now();
      for (int k = 0; k < calls; ++k) run_now(team[rank], call);
      if (rank == 0) times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - began).count() / calls);
    }
    CHECK_EQ(output[0], 3);
    CHECK_EQ(output[count - 1], 3);
  });
  for (const double time : times) std::printf("%.2f\n", time);
}
