// SPDX-License-Identifier: Apache-2.0
// Groups in trouble: ranks that are late, lost, wrong, aborted, closed or interrupted. Everybody hears of it, with the
// name of who is to blame, and nobody waits for ever.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "hccl_py/error.hpp"
#include "team.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr Over kAll[] = {Over::loopback, Over::shm, Over::tcp, Over::mixed};

void check_contains(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) fail(__FILE__, __LINE__, "no '" + part + "' in: " + text);
}

// The plan of all_reduce, whatever the size, on all ranks.
void use(Team& team, const std::function<Writer(std::uint32_t)>& program) {
  for (std::uint32_t r = 0; r < team.world(); ++r)
    team[r].set_table(Collective::all_reduce, 0, false, {0}, {team[r].load_program(program(r).bytes())});
}

GroupOptions hurried(double timeout_s) {
  GroupOptions options = patient();
  options.timeout_s = timeout_s;
  return options;
}

void test_who_never_comes_is_named() {
  for (const Over over : kAll) {
    Team team(over, 3, hurried(0.8));
    std::vector<std::string> errors(3);
    team.run([&](std::uint32_t r) {
      all_reduce_now(team[r], 10);  // now they are all awake
      if (r != 1) errors[r] = error_of<CollectiveTimeoutError>([&] { all_reduce_now(team[r], 10); });
    });
    // The first who gives up tells the other. Over mixed transports rank 2 may be the first, which waits for rank 0: that
    // is right, as rank 0 sends nothing before rank 1 of its host is there.
    for (const std::uint32_t r : {0u, 2u}) {
      check_contains(errors[r], "!");
      check_contains(errors[r], over == Over::mixed ? "rank" : "rank 1");
    }
    check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(team[0], 10); }), "since an earlier error");
    // A message that nobody sends.
    Team other(over, 2, hurried(0.2));
    std::int32_t value;
    check_contains(error_of<CollectiveTimeoutError>([&] { wait(other[0], *start_message(other[0], Op::Kind::recv, 1, 77, &value, 4)); }), "tag 77");
  }
}

// Ranks 0 and 1 fold what all three send; rank 2 enters, sends nothing and leaves. Neither may take the other, who has
// sent all, for the one that it waits for.
void test_who_leaves_without_doing_its_part_is_named() {
  for (const Over over : kAll) {
    Team team(over, 3, hurried(30));
    use(team, [](std::uint32_t r) { return r == 2 ? Writer(Collective::all_reduce, 3, 2).step({in(0)}, {out(0)}) : direct_all_reduce(3, r); });
    std::vector<std::string> errors(3);
    team.run([&](std::uint32_t r) {
      const Numbers input = numbers(r, 5000);
      Numbers output(5000);
      const Call call = call_of(Collective::all_reduce, input, output, 5000);
      if (r != 2) errors[r] = error_of<PeerLostError>([&] { run_now(team[r], call); });
      if (r == 2) run_now(team[r], call), team[r].close();
    });
    for (const std::uint32_t r : {0u, 1u}) {
      check_contains(errors[r], "!");
      check_contains(errors[r], "rank 2");
    }
  }
}

void test_who_left_is_missed_by_the_next_collective() {
  for (const Over over : kAll) {
    Team team(over, 2, hurried(30));
    team.run([&](std::uint32_t r) { all_reduce_now(team[r], 10); });
    team[1].close();
    check_contains(error_of<PeerLostError>([&] { all_reduce_now(team[0], 5000); }), "!");
    Team messages(over, 3, hurried(30));
    messages[1].close();
    std::int32_t value;
    check_contains(error_of<PeerLostError>([&] { wait(messages[0], *start_message(messages[0], Op::Kind::recv, 1, 0, &value, 4)); }), "!");
    Team anybody(over, 3, hurried(30));
    const auto any = start_message(anybody[0], Op::Kind::recv, -1, 0, &value, 4);
    anybody[1].close();
    CHECK(!anybody[0].wait(*any, 0.3));  // rank 2 may still send
    anybody[2].close();
    check_contains(error_of<PeerLostError>([&] { wait(anybody[0], *any); }), "!");
  }
}

// On one host a mismatch is found before anything moves, and the group goes on.
void test_disagreement_on_one_host_harms_nobody() {
  for (const Over over : {Over::loopback, Over::shm}) {
    Team team(over, 3);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::string> errors(3);
      std::vector<Numbers> outputs(3, Numbers(50, -1));
      team.run([&](std::uint32_t r) {
        const Numbers input = numbers(r, 50);
        Call call = call_of(Collective::all_reduce, input, outputs[r], r == 1 ? 40 : 50);
        errors[r] = error_of<DesyncError>([&] { run_now(team[r], call); });
        all_reduce_now(team[r], 50);
      });
      for (const std::string& error : errors) {
        check_contains(error, "!");
        check_contains(error, "40 elements");
        check_contains(error, "50 elements");
      }
      for (const Numbers& output : outputs) CHECK(output == Numbers(50, -1));
    }
  }
}

void test_disagreement_between_hosts() {
  for (const bool strict : {false, true})
    for (const Over over : {Over::tcp, Over::mixed}) {
      GroupOptions options = patient();
      options.strict = strict;
      Team team(over, 3, options);
      team.run([&](std::uint32_t r) { all_reduce_now(team[r], 10); });
      std::vector<std::string> errors(3);
      team.run([&](std::uint32_t r) {
        errors[r] = error_of<DesyncError>([&] { all_reduce_now(team[r], r == 2 ? 11 : 10); });
        if (strict) all_reduce_now(team[r], 5000);  // nothing has moved: they go on
      });
      for (const std::string& error : errors) check_contains(error, "!");
      if (!strict) check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(team[0], 10); }), "!");
    }
}

void test_abort_is_heard_by_all() {
  for (const Over over : kAll) {
    Team team(over, 3);
    std::vector<std::string> errors(3);
    std::atomic<int> waiting{0};
    team.run([&](std::uint32_t r) {
      if (r == 2) {
        while (waiting.load() < 2) std::this_thread::yield();
        team[2].abort("enough");
        team[2].abort("twice is fine");
        errors[2] = error_of<BrokenGroupError>([&] { all_reduce_now(team[2], 10); });
        return;
      }
      const Numbers input = numbers(r, 9000);
      Numbers output(9000);
      const auto op = start(team[r], call_of(Collective::all_reduce, input, output, 9000));
      ++waiting;
      errors[r] = error_of<BrokenGroupError>([&] { wait(team[r], *op); });
    });
    for (const std::string& error : errors) {
      check_contains(error, "!");
      check_contains(error, "rank 2 aborted the group: enough");
    }
  }
}

// By another thread of the rank that waits, which drives or does not.
void test_abort_and_close_while_a_thread_waits() {
  for (const Over over : kAll)
    for (const bool close : {false, true})
      for (const double timeout_s : {-1.0, 50.0}) {
        Team team(over, 2);
        const Numbers input = numbers(0, 9000);
        Numbers output(9000);
        const auto op = start(team[0], call_of(Collective::all_reduce, input, output, 9000));
        std::thread waiter([&] { team[0].wait(*op, timeout_s); });
        const auto began = std::chrono::steady_clock::now();
        close ? team[0].close() : team[0].abort("now");
        waiter.join();
        CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
        CHECK(op->state.load() == Op::State::failed);
        check_contains(error_of<BrokenGroupError>([&] { raise_failure(*op, 0); }), close ? "closed" : "aborted");
        check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(team[1], 9000); }), "!");  // the other hears of it
      }
}

void test_abort_stops_a_driver_that_is_busy() {
  // Rank 0 waits in the caller; messages keep coming in, so that its driver always has something to do.
  Team team(Over::shm, 2);
  std::atomic<bool> over{false};
  std::string error;
  std::thread busy([&] {
    error = error_of<BrokenGroupError>([&] { all_reduce_now(team[0], 9000); });
    over = true;
  });
  std::thread flood([&] {
    std::int32_t value = 0;
    try {
      while (!over.load()) wait(team[1], *start_message(team[1], Op::Kind::send, 0, 0, &value, sizeof value));
    } catch (const HcclError&) {
    }
  });
  std::this_thread::yield();
  team[0].abort("stop");
  busy.join();
  flood.join();
  check_contains(error, "stop");
}

// Work that comes after the end fails at once; nobody would ever drive it.
void test_work_after_the_end_fails() {
  for (const bool close : {false, true}) {
    Team team(Over::shm, 2);
    const Numbers input = numbers(0, 10);
    Numbers output(10);
    auto op = std::make_shared<Op>();
    op->call = call_of(Collective::all_reduce, input, output, 10);
    CHECK(team[0].prepare(*op));  // in time, but then another thread ends the group
    auto second = std::make_shared<Op>();
    second->call = op->call;
    second->executor = op->executor;
    close ? team[0].close() : team[0].abort("over");
    CHECK(!team[0].run_now(*op));
    team[0].start(op);
    CHECK(team[0].wait(*op, 20));
    CHECK(op->state.load() == Op::State::failed);
    team[0].start(second);
    while (second->pending()) std::this_thread::yield();  // also if nobody waits
    CHECK(!team[0].has_work());
    team[0].close();
    team[0].close();
  }
}

Group* to_close = nullptr;

// A signal handler may call close() and abort() while its own thread drives.
void test_interruptions() {
  GroupOptions options = patient();
  options.interrupted = [] { return true; };
  Team team(Over::shm, 2, options);
  check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(team[0], 9000); }), "interrupted");
  check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(team[1], 9000); }), "interrupted");
  for (const bool close : {false, true}) {
    GroupOptions closing = patient();
    closing.interrupted = close ? [] { return to_close->close(), false; } : [] { return to_close->abort("by a handler"), false; };
    Team pair(Over::shm, 2, closing);
    to_close = &pair[0];
    check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(pair[0], 9000); }), close ? "closed" : "by a handler");
    to_close = &pair[1];
    check_contains(error_of<BrokenGroupError>([&] { all_reduce_now(pair[1], 9000); }), close ? "closed" : "by a handler");
  }
  // One who waits while another drives.
  GroupOptions waiting = patient();
  waiting.interrupted = [] { return true; };
  Team other(Over::shm, 2, waiting);
  std::int32_t value;
  const auto op = start_message(other[0], Op::Kind::recv, 1, 0, &value, 4);
  CHECK(!other[0].wait(*op, 50));  // the progress thread drives
  CHECK(op->pending());
}

// Bad news reach ranks of other hosts and of this one, whoever finds out.
void test_bad_news_cross_hosts() {
  for (const std::uint32_t who : {0u, 2u}) {
    Team team(Over::mixed, 3);
    std::vector<std::string> errors(3);
    team.run([&](std::uint32_t r) {
      if (r == who) return team[r].abort("bad news");
      std::int32_t value;
      errors[r] = error_of<BrokenGroupError>([&] { wait(team[r], *start_message(team[r], Op::Kind::recv, -1, 0, &value, 4)); });
    });
    for (std::uint32_t r = 0; r < 3; ++r)
      if (r != who) check_contains(errors[r], "bad news");
  }
}

void test_call_sites_are_exchanged() {
  Team team(Over::shm, 2);
  team[1].post_site(4, "train.py:12");
  CHECK_EQ(team[0].peer_site(1, 4, 5), "train.py:12");
  CHECK_EQ(team[0].peer_site(1, 5, 0.01), "");  // it does not say
  team[1].post_site(6, std::string(1000, 'z'));
  CHECK_EQ(team[0].peer_site(1, 5, 5), "");  // it is further on
  CHECK_EQ(team[0].peer_site(1, 6, 5), std::string(247, 'z'));
}

#ifndef __SANITIZE_THREAD__
// Waits until all other threads sleep: a child that is forked while one of them is in malloc could never call it (a plain
// malloc takes care of that, AddressSanitizer's does not).
void let_others_sleep() {
  for (bool asleep = false; !asleep;) {
    std::this_thread::yield();
    asleep = true;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == std::to_string(gettid())) continue;
      std::ifstream stat(task.path() / "stat");
      std::string id, name, state;
      stat >> id >> name >> state;
      asleep &= state == "S";
    }
  }
}

// A forked child that ends in order leaves the parent's group alone.
void test_a_forked_child_has_no_part() {
  for (const Over over : {Over::shm, Over::tcp, Over::mixed}) {
    Team team(over, 3);
    std::int32_t value = 0;
    const auto op = start_message(team[0], Op::Kind::recv, 1, 0, &value, 4);  // there is a progress thread now
    let_others_sleep();
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      team[1].close();
      for (auto& group : team.groups) group.reset();
      // It may have groups of its own, which progress.
      const auto hub = std::make_shared<Hub>(2);
      const auto a = std::make_shared<Group>(0, 2, patient(), hub), b = std::make_shared<Group>(1, 2, patient(), hub);
      std::int32_t got = 0, sent = 3;
      const auto late = start_message(*a, Op::Kind::recv, 1, 0, &got, 4);
      wait(*b, *start_message(*b, Op::Kind::send, 0, 0, &sent, 4));
      while (late->pending()) std::this_thread::yield();
      _exit(got == 3 ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    team.run([&](std::uint32_t r) {
      for (const std::size_t count : {10, 9000}) all_reduce_now(team[r], count);
      std::int32_t nine = 9;
      if (r == 1) wait(team[1], *start_message(team[1], Op::Kind::send, 0, 0, &nine, 4));
      if (r == 0) wait(team[0], *op);
    });
    CHECK_EQ(value, 9);
  }
}
#endif

}  // namespace

int main() {
  return run_tests({
      {"who never comes is named", test_who_never_comes_is_named},
      {"who leaves without doing its part is named", test_who_leaves_without_doing_its_part_is_named},
      {"who left is missed by the next collective", test_who_left_is_missed_by_the_next_collective},
      {"disagreement on one host harms nobody", test_disagreement_on_one_host_harms_nobody},
      {"disagreement between hosts", test_disagreement_between_hosts},
      {"abort is heard by all", test_abort_is_heard_by_all},
      {"abort and close while a thread waits", test_abort_and_close_while_a_thread_waits},
      {"abort stops a driver that is busy", test_abort_stops_a_driver_that_is_busy},
      {"work after the end fails", test_work_after_the_end_fails},
      {"interruptions", test_interruptions},
      {"bad news cross hosts", test_bad_news_cross_hosts},
      {"call sites are exchanged", test_call_sites_are_exchanged},
#ifndef __SANITIZE_THREAD__
      {"a forked child has no part", test_a_forked_child_has_no_part},
#endif
  });
}
