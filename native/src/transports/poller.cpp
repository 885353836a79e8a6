// SPDX-License-Identifier: Apache-2.0
// The poller: one edge-triggered epoll, so that idle connections cost no system call.
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <limits>

#include "hccl_py/error.hpp"
#include "hccl_py/tcp.hpp"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

namespace hccl_py {
namespace {

constexpr std::chrono::nanoseconds kNoWait{0};

int wait_ms(int epoll, epoll_event* events, int num_events, std::chrono::nanoseconds timeout) {
  if (timeout < kNoWait) return epoll_wait(epoll, events, num_events, -1);
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return epoll_wait(epoll, events, num_events,
                    static_cast<int>(std::min<decltype(ms)>(ms, std::numeric_limits<int>::max())));
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw TransportUnavailableError("epoll_create1: " + errno_text(errno), errno_text(errno));
}

void Poller::watch(int fd, Readiness& readiness) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &readiness;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw TransportUnavailableError("epoll_ctl: " + errno_text(errno), errno_text(errno));
  }
  readiness.watched = true;
}

void Poller::forget(int fd, Readiness& readiness) {
  // Fails only if the descriptor is closed already, and then epoll has forgotten it.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  readiness = {};
}

int Poller::poll(std::chrono::nanoseconds timeout) {
  std::array<epoll_event, kBatch> events;
  int total = 0;
  for (int num = kBatch; num == kBatch; timeout = kNoWait) {
    num = -1;
    if (timeout > kNoWait && has_pwait2_) {
      const auto s = std::chrono::floor<std::chrono::seconds>(timeout);
      const timespec spec{static_cast<time_t>(s.count()), static_cast<long>((timeout - s).count())};
      num = static_cast<int>(syscall(SYS_epoll_pwait2, epoll_.get(), events.data(), kBatch, &spec, nullptr, 0));
      has_pwait2_ = num >= 0 || errno == EINTR;  // kernels before 5.11 and old sandboxes do not have it
    }
    if (num < 0 && (timeout <= kNoWait || !has_pwait2_)) num = wait_ms(epoll_.get(), events.data(), kBatch, timeout);
    for (int i = 0; i < num; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      auto& readiness = *static_cast<Readiness*>(event.data.ptr);
      const bool ended = (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
      readiness.hangup |= ended;
      readiness.readable |= ended || (event.events & EPOLLIN) != 0;
      readiness.writable |= ended || (event.events & EPOLLOUT) != 0;
    }
    total += std::max(num, 0);
  }
  return total;
}

}  // namespace hccl_py
