// SPDX-License-Identifier: Apache-2.0
// The handshake's mechanics, private to tcp_mesh.cpp: a message that arrives in parts, a message sent whole, and the
// options of a fresh socket.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hccl_py/wire.hpp"

namespace hccl_py {

// What is received of one handshake message.
class Inbox {
 public:
  explicit Inbox(std::size_t bytes) : want_(bytes) {}
  enum class Result { partial, complete, ended, failed };
  Result receive(int fd) {
    while (have_ < want_) {
      const ssize_t got = ::recv(fd, bytes_.data() + have_, want_ - have_, MSG_DONTWAIT);
      if (got > 0) {
        have_ += static_cast<std::size_t>(got);
      } else if (got == 0) {
        return Result::ended;
      } else if (errno != EINTR) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? Result::partial : Result::failed;
      }
    }
    return Result::complete;
  }
  // False as soon as the first bytes cannot be those of a message with this magic.
  bool may_start_with(std::uint32_t magic) const {
    for (std::size_t i = 0; i < std::min<std::size_t>(have_, 4); ++i) {
      if (bytes_[i] != static_cast<std::byte>(magic >> (8 * i))) return false;
    }
    return true;
  }
  template <std::size_t n>
  std::span<const std::byte, n> message() const { return std::span<const std::byte, n>(bytes_.data(), n); }

 private:
  std::array<std::byte, 128> bytes_{};
  std::size_t want_;
  std::size_t have_ = 0;
};

// A handshake message always fits into the empty buffer of a new socket.
template <typename Message, std::size_t n>
bool send_message(int fd, const Message& message) {
  std::array<std::byte, n> bytes;
  encode(message, std::span<std::byte, n>(bytes));
  ssize_t sent;
  do {
    sent = ::send(fd, bytes.data(), n, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(n);
}

inline void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

// Sizes of the kernel's buffers; 0 leaves them to the kernel. To be set before a connection is made.
inline void size_buffers(int fd, std::size_t send_bytes, std::size_t recv_bytes) {
  const auto limited = [](std::size_t bytes) { return static_cast<int>(std::min<std::size_t>(bytes, 1U << 30)); };
  if (send_bytes > 0) set_option(fd, SOL_SOCKET, SO_SNDBUF, limited(send_bytes));
  if (recv_bytes > 0) set_option(fd, SOL_SOCKET, SO_RCVBUF, limited(recv_bytes));
}

inline void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that vanished is noticed on an idle connection after 30 + 3 * 10 seconds.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace hccl_py
