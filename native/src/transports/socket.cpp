// SPDX-License-Identifier: Apache-2.0
// File descriptors, IP addresses and endpoints, and the identity of this host's network stack.
#include "hccl_py/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hccl_py/error.hpp"

namespace hccl_py {

void Fd::close() {
  // Not retried on EINTR: on Linux the descriptor is gone either way.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

ssize_t send_with_fd(int socket, std::span<const std::byte> body, int fd, int flags, const sockaddr_un* to, socklen_t to_length) {
  iovec piece{const_cast<std::byte*>(body.data()), body.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_un*>(to);
  message.msg_namelen = to_length;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

ssize_t receive_with_fd(int socket, std::span<std::byte> body, Fd& fd, int flags) {
  fd = {};
  iovec piece{body.data(), body.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  const cmsghdr* c = n < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    int raw;
    std::memcpy(&raw, CMSG_DATA(c), sizeof raw);
    fd = Fd(raw);
  }
  return n;
}

Family parse_family(std::string_view text) {
  if (text == "auto") return Family::any;
  if (text == "4") return Family::v4;
  if (text == "6") return Family::v6;
  throw ConfigError("tcp_family is '" + std::string(text) + "'; it may be auto, 4 or 6");
}

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  IpAddress ip;
  std::string address(text.substr(0, text.find('%')));
  if (address.size() == text.size() && inet_pton(AF_INET, address.c_str(), ip.bytes.data()) == 1) return ip;
  ip.family = Family::v6;
  if (inet_pton(AF_INET6, address.c_str(), ip.bytes.data()) != 1) return std::nullopt;
  if (address.size() != text.size()) {
    ip.scope = if_nametoindex(std::string(text.substr(address.size() + 1)).c_str());
    if (ip.scope == 0) return std::nullopt;
  }
  return ip;
}

std::string IpAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = "";
  inet_ntop(family == Family::v4 ? AF_INET : AF_INET6, bytes.data(), buffer, sizeof buffer);
  std::string text = buffer;
  if (scope != 0) {
    char name[IF_NAMESIZE];
    text += '%';
    text += if_indextoname(scope, name) != nullptr ? std::string(name) : std::to_string(scope);
  }
  return text;
}

bool IpAddress::is_loopback() const {
  if (family == Family::v4) return bytes[0] == 127;
  IpAddress one;
  one.family = Family::v6;
  one.bytes[15] = 1;
  return *this == one;
}

bool IpAddress::is_link_local() const {
  if (family == Family::v4) return bytes[0] == 169 && bytes[1] == 254;
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool IpAddress::same_network(const IpAddress& other, int prefix) const {
  if (family != other.family) return false;
  const auto whole = static_cast<std::size_t>(prefix / 8);
  if (std::memcmp(bytes.data(), other.bytes.data(), whole) != 0) return false;
  const int rest = prefix % 8;
  return rest == 0 || ((bytes[whole] ^ other.bytes[whole]) >> (8 - rest)) == 0;
}

Endpoint Endpoint::from(const sockaddr_storage& address) {
  Endpoint endpoint;
  if (address.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &address, sizeof in);
    std::memcpy(endpoint.ip.bytes.data(), &in.sin_addr, 4);
    endpoint.port = ntohs(in.sin_port);
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 in6;
    std::memcpy(&in6, &address, sizeof in6);
    endpoint.port = ntohs(in6.sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
      std::memcpy(endpoint.ip.bytes.data(), in6.sin6_addr.s6_addr + 12, 4);
    } else {
      endpoint.ip.family = Family::v6;
      std::memcpy(endpoint.ip.bytes.data(), &in6.sin6_addr, 16);
      endpoint.ip.scope = in6.sin6_scope_id;
    }
  }
  return endpoint;
}

socklen_t Endpoint::to(sockaddr_storage& address) const {
  address = {};
  if (ip.family == Family::v4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, ip.bytes.data(), 4);
    std::memcpy(&address, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(port);
  std::memcpy(&in6.sin6_addr, ip.bytes.data(), 16);
  in6.sin6_scope_id = ip.scope;
  std::memcpy(&address, &in6, sizeof in6);
  return sizeof in6;
}

std::string Endpoint::text() const {
  const std::string number = std::to_string(port);
  return ip.family == Family::v4 ? ip.text() + ":" + number : "[" + ip.text() + "]:" + number;
}

Endpoint local_endpoint(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return Endpoint::from(address);
}

Endpoint remote_endpoint(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return Endpoint::from(address);
}

std::array<std::uint8_t, 16> random_bytes16() {
  std::array<std::uint8_t, 16> bytes{};
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      throw TransportUnavailableError("getrandom: " + errno_text(errno), "no random numbers");
    }
  }
  return bytes;
}

std::array<std::uint8_t, 16> network_stack_id() {
  struct stat netns;
  char boot[36];  // 8-4-4-4-12 hexadecimal digits
  const Fd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!fd || read(fd.get(), boot, sizeof boot) != sizeof boot || stat("/proc/self/ns/net", &netns) != 0) {
    return random_bytes16();
  }
  std::array<std::uint8_t, 16> id{};
  std::size_t digit = 0;
  for (const char c : boot) {
    if (c == '-' || digit == 32) continue;
    const int value = c >= 'a' ? c - 'a' + 10 : c - '0';
    id[digit / 2] = static_cast<std::uint8_t>(id[digit / 2] << 4 | (value & 15));
    ++digit;
  }
  // The boot id is random already, and the inode is unique within a boot: exclusive or keeps both.
  for (std::size_t i = 0; i < 8; ++i) id[i] ^= static_cast<std::uint8_t>(netns.st_ino >> (8 * i));
  return id;
}

}  // namespace hccl_py
