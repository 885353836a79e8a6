// SPDX-License-Identifier: Apache-2.0
// The waiting policy: spins, then yields, then sleep; and how it gives up yielding where that costs time slices.
#include <chrono>
#include <thread>

#include "check.hpp"
#include "hccl_py/futex.hpp"
#include "hccl_py/waiter.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

int turns_before_sleep(Waiter& waiter) {
  int turns = 0;
  while (waiter.pause()) ++turns;
  return turns;
}

void test_enough_cores_spin_first() {
  CHECK_EQ(WaitPolicy::choose(4, 4).spins, 1000u);
  CHECK_EQ(WaitPolicy::choose(4, 4).yields, 32u);
  CHECK_EQ(WaitPolicy::choose(5, 4).spins, 0u);
  CHECK_EQ(WaitPolicy::choose(5, 4).yields, 32u);
}

void test_turns_are_those_of_the_policy() {
  Waiter waiter(WaitPolicy{7, 0});
  CHECK_EQ(turns_before_sleep(waiter), 7);
  CHECK(!waiter.pause());  // it stays asleep
  waiter.reset();
  CHECK_EQ(turns_before_sleep(waiter), 7);
  Waiter sleepy(WaitPolicy{0, 0});
  CHECK_EQ(turns_before_sleep(sleepy), 0);
}

void test_spins_in_vain_become_short() {
  Waiter waiter(WaitPolicy{1000, 0});
  CHECK_EQ(turns_before_sleep(waiter), 1000);
  for (int wait = 1; wait <= 40; ++wait) {
    waiter.reset();
    CHECK_EQ(turns_before_sleep(waiter), wait % 16 == 0 ? 1000 : 64);
  }
  // Those that find something grow.
  for (const int spins : {64, 128, 256, 512, 1000, 1000}) {
    waiter.reset();
    for (int i = 0; i < spins; ++i) CHECK(waiter.pause());
  }
  waiter.reset();
  CHECK_EQ(turns_before_sleep(waiter), 1000);
}

// Whether yields are slow is a matter of this machine; here a stranger takes two milliseconds between two of them.
void test_slow_yields_are_left_out_for_a_while() {
  Waiter waiter(WaitPolicy{3, 1});
  for (int i = 0; i < 4; ++i) CHECK(waiter.pause());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(!waiter.pause());
  int without = 0;
  for (;; ++without) {
    waiter.reset();
    const int turns = turns_before_sleep(waiter);
    if (turns == 4) break;
    CHECK_EQ(turns, 3);
    for (int i = 0; i < 3; ++i) CHECK(!waiter.pause());  // it sleeps several times before its turn comes
    CHECK(without < 1000);
  }
  CHECK_EQ(without, 64);
  // The first slow one is enough.
  Waiter patient(WaitPolicy{0, 32});
  CHECK(patient.pause());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(!patient.pause());
  patient.reset();
  CHECK(!patient.pause());
}

void test_futex_wait_ends() {
  std::atomic<std::uint32_t> word{1};
  const std::int64_t began = monotonic_ns();
  futex_wait(word, 0, 60'000'000'000);  // another value: at once
  futex_wait(word, 1, 1'000'000);       // the time is over
  CHECK(monotonic_ns() - began < 30'000'000'000);
  std::thread waker([&] {
    word.store(2);
    futex_wake(word);
  });
  while (word.load() == 1) futex_wait(word, 1, 60'000'000'000);
  waker.join();
  CHECK(monotonic_ns() - began < 30'000'000'000);
}

}  // namespace

int main() {
  return run_tests({
      {"enough cores: spin first", test_enough_cores_spin_first},
      {"turns are those of the policy", test_turns_are_those_of_the_policy},
      {"spins in vain become short", test_spins_in_vain_become_short},
      {"slow yields are left out for a while", test_slow_yields_are_left_out_for_a_while},
      {"a futex wait ends", test_futex_wait_ends},
  });
}
