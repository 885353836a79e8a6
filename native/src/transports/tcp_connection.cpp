// SPDX-License-Identifier: Apache-2.0
// A TCP connection as two pipes. Large bodies go from and to the caller's memory; what is small, or folded straight to
// the wire, is staged in one buffer per direction, allocated with the connection. After a short transfer the socket is
// known to be empty (or full), so the next system call waits for the poller's word; see epoll(7), question 9.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "hccl_py/error.hpp"
#include "hccl_py/tcp.hpp"

namespace hccl_py {
namespace {

constexpr std::size_t kMaxCall = std::size_t{1} << 30;   // the kernel cuts a call at 2 GiB: stay below, see above
constexpr std::size_t kSmallBytes = 4096;                // cheaper to copy than to spend a system call on
constexpr std::size_t kPushBytes = 64 * 1024;            // staged bytes that are worth one
constexpr std::size_t kMinRoom = 64;                     // never hand out scraps that hold no element

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

TcpConnection::TcpConnection(Fd fd, int peer, int index)
    : fd_(std::move(fd)), peer_(peer), index_(index), sender_(*this), receiver_(*this) {
  description_ = "rank " + std::to_string(peer) + " (tcp connection " + std::to_string(index) + ", " +
                 local_endpoint(fd_.get()).text() + " -> " + remote_endpoint(fd_.get()).text() + ")";
}

TcpConnection::~TcpConnection() { close(); }

void TcpConnection::watch(Poller& poller) {
  poller.watch(fd_.get(), readiness_);
  poller_ = &poller;
}

void TcpConnection::shutdown_send() {
  if (fd_) ::shutdown(fd_.get(), SHUT_WR);
  if (sender_.state_ == PipeState::open) sender_.state_ = PipeState::closed;
}

void TcpConnection::close() {
  if (!fd_) return;
  if (poller_ != nullptr) std::exchange(poller_, nullptr)->forget(fd_.get(), readiness_);
  fd_.close();
  if (sender_.state_ == PipeState::open) sender_.state_ = PipeState::closed;
  receiver_.ended_ = true;
  receiver_.begin_ = receiver_.end_ = 0;
}

std::string TcpConnection::failure() const {
  if (receiver_.error_ != 0) return errno_text(receiver_.error_);
  if (receiver_.truncated_) return "closed by the peer within a message";
  return sender_.error_ != 0 ? errno_text(sender_.error_) : "";
}

TcpConnection::Sender::Sender(TcpConnection& connection)
    : connection_(connection), buffer_(std::make_unique_for_overwrite<Buffer>()) {}

std::span<std::byte> TcpConnection::Sender::room(std::size_t want) {
  if (staged() == 0) first_ = {};
  const std::size_t after = kBufferBytes - first_.end;
  if (second_.size() == 0 && (after >= want || after >= first_.begin)) {
    reserved_ = &first_;
    return {buffer_->bytes + first_.end, after};
  }
  if (second_.size() == 0) second_ = {};
  reserved_ = &second_;
  return {buffer_->bytes + second_.end, first_.begin - second_.end};
}

std::span<std::byte> TcpConnection::Sender::reserve(std::size_t want) {
  if (state_ != PipeState::open) return {};
  std::span<std::byte> free = room(want);
  if (free.size() < want && staged() > 0) {
    push({}, {}, true);
    if (state_ != PipeState::open) return {};
    free = room(want);
  }
  if (free.size() < std::min(want, kMinRoom)) return {};
  return free.first(std::min(want, free.size()));
}

void TcpConnection::Sender::commit(std::size_t bytes) {
  if (state_ != PipeState::open) return;
  reserved_->end += bytes;
  if (staged() >= kPushBytes) push({}, {}, true);
}

void TcpConnection::Sender::stage(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::memcpy(buffer_->bytes + reserved_->end, bytes.data(), bytes.size());
  reserved_->end += bytes.size();
}

std::size_t TcpConnection::Sender::write(std::span<const std::byte> head, std::span<const std::byte> body, bool more) {
  const std::size_t total = head.size() + body.size();
  if (state_ != PipeState::open || total == 0) return 0;
  const bool blocked = connection_.readiness_.watched && !connection_.readiness_.writable;
  if ((more || blocked) && total <= kSmallBytes && room(total).size() >= total) {
    stage(head);
    stage(body);
    if (!blocked && staged() >= kPushBytes) push({}, {}, more);
    return total;
  }
  return push(head, body, more);
}

std::size_t TcpConnection::Sender::push(std::span<const std::byte> head, std::span<const std::byte> body, bool more) {
  Readiness& readiness = connection_.readiness_;
  if (readiness.watched && !readiness.writable) return 0;
  body = body.first(std::min(body.size(), kMaxCall));
  std::array<iovec, 4> pieces;
  std::size_t num_pieces = 0, asked = 0;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    if (bytes == 0) return;
    pieces[num_pieces++] = {const_cast<std::byte*>(data), bytes};
    asked += bytes;
  };
  add(buffer_->bytes + first_.begin, first_.size());
  add(buffer_->bytes + second_.begin, second_.size());
  add(head.data(), head.size());
  add(body.data(), body.size());
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = num_pieces;
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
  ssize_t sent;
  do {
    sent = ::sendmsg(connection_.fd_.get(), &message, flags);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (would_block(errno)) {
      readiness.writable = false;
    } else if (errno != ENOBUFS && errno != ENOMEM) {  // those two pass, and epoll does not tell when
      fail(errno);
    }
    return 0;
  }
  const auto bytes = static_cast<std::size_t>(sent);
  if (bytes < asked) readiness.writable = false;
  corked_ = more;
  return bytes - unstage(bytes);
}

// Drops up to `bytes` staged bytes, the oldest first; returns how many there were.
std::size_t TcpConnection::Sender::unstage(std::size_t bytes) {
  const std::size_t from_first = std::min(bytes, first_.size());
  first_.begin += from_first;
  const std::size_t from_second = std::min(bytes - from_first, second_.size());
  second_.begin += from_second;
  if (first_.size() == 0 && second_.size() > 0) first_ = std::exchange(second_, {});
  return from_first + from_second;
}

bool TcpConnection::Sender::flush() {
  if (state_ == PipeState::failed) return true;
  if (staged() > 0) push({}, {}, false);
  if (staged() == 0 && corked_ && connection_.fd_) {
    // Setting the option again sends what the kernel holds back.
    const int on = 1;
    ::setsockopt(connection_.fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    corked_ = false;
  }
  return staged() == 0;
}

void TcpConnection::Sender::fail(int error) {
  error_ = error;
  state_ = PipeState::failed;
  first_ = second_ = {};
}

TcpConnection::Receiver::Receiver(TcpConnection& connection)
    : connection_(connection), buffer_(std::make_unique_for_overwrite<Buffer>()) {}

PipeState TcpConnection::Receiver::state() const {
  if (error_ != 0 || truncated_) return PipeState::failed;
  return ended_ && begin_ == end_ ? PipeState::closed : PipeState::open;
}

std::size_t TcpConnection::Receiver::receive(std::byte* out, std::size_t bytes) {
  Readiness& readiness = connection_.readiness_;
  if (bytes == 0 || ended_ || error_ != 0) return 0;
  if (readiness.watched && !readiness.readable) {
    readiness.asked = true;
    return 0;
  }
  bytes = std::min(bytes, kMaxCall);
  ssize_t got;
  do {
    got = ::recv(connection_.fd_.get(), out, bytes, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (would_block(errno)) {
      readiness.readable = false;
      readiness.asked = true;
    } else if (errno != ENOMEM) {
      error_ = errno;
    }
    return 0;
  }
  if (got == 0) ended_ = true;
  // After a hang-up there is no further edge to wait for, so that the end itself must still be read.
  if (static_cast<std::size_t>(got) < bytes && !readiness.hangup) readiness.readable = false;
  return static_cast<std::size_t>(got);
}

void TcpConnection::Receiver::fill(std::size_t want) {
  const std::size_t have = end_ - begin_;
  if (have == 0) {
    begin_ = end_ = 0;
  } else if (kBufferBytes - begin_ < want && have <= kSmallBytes) {
    std::memmove(buffer_->bytes, buffer_->bytes + begin_, have);
    begin_ = 0;
    end_ = have;
  }
  // A little more than wanted: a header is mostly followed by a small payload or the next header. Not much more: large
  // payloads are to be received in place.
  const std::size_t bytes = std::min(std::max(want - have, kSmallBytes), kBufferBytes - end_);
  end_ += receive(buffer_->bytes + end_, bytes);
}

std::span<const std::byte> TcpConnection::Receiver::peek(std::size_t want, std::size_t at_least) {
  const std::size_t whole = std::min(std::max(want, at_least), kBufferBytes);
  if (end_ - begin_ < whole) fill(whole);
  const std::size_t have = end_ - begin_;
  if (have < at_least) {
    truncated_ |= ended_ && have > 0;
    return {};
  }
  return {buffer_->bytes + begin_, std::min(want, have)};
}

void TcpConnection::Receiver::consume(std::size_t bytes) { begin_ += std::min(bytes, end_ - begin_); }

std::size_t TcpConnection::Receiver::read(std::span<std::byte> out) {
  const std::size_t buffered = std::min(out.size(), end_ - begin_);
  if (buffered > 0) {
    std::memcpy(out.data(), buffer_->bytes + begin_, buffered);
    begin_ += buffered;
  }
  return buffered + receive(out.data() + buffered, out.size() - buffered);
}

}  // namespace hccl_py
