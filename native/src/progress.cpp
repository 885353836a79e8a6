// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/progress.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "hccl_py/error.hpp"
#include "hccl_py/group.hpp"

namespace hccl_py {
namespace {

constexpr int kSleep_ms = 100;

}  // namespace

std::shared_ptr<Progress> Progress::shared() {
  static std::mutex mutex;
  static std::weak_ptr<Progress> known;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (std::exchange(owner, getpid()) != getpid()) known.reset();  // a forked child has no thread yet
  std::shared_ptr<Progress> progress = known.lock();
  if (!progress) known = progress = std::make_shared<Progress>(WaitPolicy{0, 16});
  return progress;
}

Progress::Progress(WaitPolicy policy)
    : state_(std::make_shared<State>(Waiter(policy), Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)))) {
  if (!state_->wake) throw InternalError("cannot make an eventfd: " + errno_text(errno));
  thread_ = std::thread([state = state_] { loop(*state); });
}

Progress::~Progress() {
  state_->stop.store(true);
  ring(*state_);
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

void Progress::ring(State& state) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(state.wake.get(), &one, sizeof one);
}

void Progress::notify(const std::shared_ptr<Group>& group) {
  {
    const std::lock_guard lock(state_->mutex);
    Groups& notified = state_->notified;
    if (std::find(notified.begin(), notified.end(), group) == notified.end()) notified.push_back(group);
  }
  ring(*state_);
}

void Progress::loop(State& state) {
  Groups active;
  while (!state.stop.load(std::memory_order_relaxed)) {
    {
      const std::lock_guard lock(state.mutex);
      for (std::shared_ptr<Group>& group : state.notified)
        if (std::find(active.begin(), active.end(), group) == active.end()) active.push_back(std::move(group));
      state.notified.clear();
    }
    if (round(active)) {
      state.waiter.reset();
      continue;
    }
    // What comes by a wire wakes us. To yield before that would cost a time slice where others compute.
    const bool wires = std::any_of(active.begin(), active.end(), [](const std::shared_ptr<Group>& group) { return group->has_wires(); });
    if (!active.empty() && !wires && state.waiter.pause()) continue;
    sleep(state, active);
    state.waiter.reset();
  }
}

// Drives each group once. A group whose token somebody holds is left to him: he notifies us if work remains.
bool Progress::round(Groups& active) {
  bool moved = false;
  std::erase_if(active, [&](const std::shared_ptr<Group>& group) {
    if (!group->try_token()) return true;
    moved |= group->drive();
    const bool done = !group->has_work();
    group->release_token_quietly();
    return done;
  });
  return moved;
}

void Progress::sleep(State& state, Groups& active) {
  std::vector<pollfd> fds{{state.wake.get(), POLLIN, 0}};
  bool moved = false;
  std::erase_if(active, [&](const std::shared_ptr<Group>& group) {
    if (!group->try_token()) return true;
    group->check_health();
    moved |= group->prepare_sleep(Sleeping::on_socket);
    group->release_token_quietly();
    fds.push_back({group->sleep_fd(), POLLIN, 0});
    return false;
  });
  if (!moved) ::poll(fds.data(), fds.size(), active.empty() ? -1 : kSleep_ms);
  std::uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(state.wake.get(), &count, sizeof count);
  for (const std::shared_ptr<Group>& group : active) {
    if (!group->try_token()) continue;
    group->end_sleep();
    group->release_token_quietly();
  }
}

}  // namespace hccl_py
