// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/bells.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "hccl_py/error.hpp"

namespace hccl_py {

socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  std::memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

std::string random_name() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random_u64()));
  return text;
}

BellSocket::BellSocket()
    : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), name_("hccl_py-bell-" + random_name()) {
  if (!fd_) throw TransportUnavailableError("cannot make a datagram socket", errno_text(errno));
  sockaddr_un address;
  const socklen_t length = abstract_address(name_, address);
  if (bind(fd(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw TransportUnavailableError("cannot bind a datagram socket", errno_text(errno));
}

void BellSocket::drain() {
  char byte;
  while (recv(fd(), &byte, 1, MSG_DONTWAIT) >= 0 || errno == EINTR) {
  }
}

void BellSocket::ring(const std::string& name) const {
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  const char byte = 1;
  while (sendto(fd(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address), length) < 0 &&
         errno == EINTR) {
  }
}

void Bells::wake(std::uint32_t local) const {
  BoardRank& peer = board_.rank(local);
  // Whoever takes the flag down does the waking; the sleeper puts it up again before it sleeps again.
  const auto how = static_cast<Sleeping>(peer.sleeping.exchange(0, std::memory_order_seq_cst));
  switch (how) {
    case Sleeping::awake: return;
    case Sleeping::on_futex:
      peer.bell.fetch_add(1, std::memory_order_seq_cst);
      futex_wake(peer.bell);
      return;
    case Sleeping::on_socket:
      if (socket_ != nullptr) socket_->ring(names_[local]);
      return;
  }
}

}  // namespace hccl_py
