// SPDX-License-Identifier: Apache-2.0
// Ranks that wait on one core move apart: the later one goes, not more often than it helps.
#include <sched.h>

#include <vector>

#include "check.hpp"
#include "hccl_py/placement.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

struct TwoRanks {
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>((Board::bytes(2, 64) + 64) / 8);
  Board board{reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~std::uintptr_t{63}), 2, 64};
  void put(std::uint32_t local, int core) { board.rank(local).core.store(static_cast<std::uint32_t>(core) + 1); }
  int core_of(std::uint32_t local) { return static_cast<int>(board.rank(local).core.load()) - 1; }
};

cpu_set_t allowed() {
  cpu_set_t set;
  CHECK_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

void test_the_later_rank_leaves_a_shared_core() {
  const cpu_set_t before = allowed();
  TwoRanks ranks;
  Placement later(ranks.board, 1);
  const int core = sched_getcpu();
  ranks.put(0, core);
  later.spread_out();
  const cpu_set_t after = allowed();
  CHECK(CPU_EQUAL(&before, &after));
  if (CPU_COUNT(&before) < 2) {
    CHECK_EQ(later.moves(), 0u);
    return;
  }
  CHECK_EQ(later.moves(), 1u);
  CHECK(ranks.core_of(1) >= 0);
  ranks.put(0, sched_getcpu());
  later.spread_out();  // not at once again
  CHECK_EQ(later.moves(), 1u);
}

void test_others_stay() {
  TwoRanks ranks;
  Placement first(ranks.board, 0), later(ranks.board, 1), off;
  const int core = sched_getcpu();
  ranks.put(1, core);
  first.spread_out();  // the earlier rank stays
  CHECK_EQ(first.moves(), 0u);
  ranks.put(0, core + 1000);  // apart
  later.spread_out();
  CHECK_EQ(later.moves(), 0u);
  CHECK(ranks.core_of(1) < 1000);
  off.spread_out();  // more ranks than cores
  CHECK_EQ(off.moves(), 0u);
}

void test_a_thread_bound_to_one_core_stays() {
  const cpu_set_t before = allowed();
  cpu_set_t one;
  CPU_ZERO(&one);
  const int core = sched_getcpu();
  CPU_SET(core, &one);
  CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  CHECK(!leave_core(static_cast<std::uint32_t>(core)));
  const cpu_set_t after = allowed();
  CHECK(CPU_EQUAL(&one, &after));
  CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace

int main() {
  return run_tests({
      {"the later rank leaves a shared core", test_the_later_rank_leaves_a_shared_core},
      {"others stay", test_others_stay},
      {"a thread bound to one core stays", test_a_thread_bound_to_one_core_stays},
  });
}
