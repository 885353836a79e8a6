// SPDX-License-Identifier: Apache-2.0
// The one native thread of a process that drives started work while nobody waits for it. Made with the first such
// work, shared by all groups, asleep whenever nothing moves.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hccl_py/socket.hpp"
#include "hccl_py/tcp.hpp"
#include "hccl_py/waiter.hpp"

namespace hccl_py {

class Group;

class Progress {
 public:
  // The process's own; it ends with the last group that holds it.
  static std::shared_ptr<Progress> shared();
  explicit Progress(WaitPolicy policy);
  ~Progress();

  // `group` has work that nobody may be driving. Any thread.
  void notify(const std::shared_ptr<Group>& group);

 private:
  // Shared with the thread, which may be the one that drops the last group and with it this object.
  struct State {
    Waiter waiter;
    Fd wake;
    std::mutex mutex;
    std::vector<std::shared_ptr<Group>> notified;
    std::atomic<bool> stop{false};
  };
  using Groups = std::vector<std::shared_ptr<Group>>;
  static void loop(State& state);
  static bool round(Groups& active);
  static void sleep(State& state, Groups& active);
  static void ring(State& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace hccl_py
