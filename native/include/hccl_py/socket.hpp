// SPDX-License-Identifier: Apache-2.0
// What the network transports know of this machine: file descriptors, IP addresses, endpoints, and the choice of local
// addresses by the user's interface list. Addresses are judged, never interface names: a real address may sit on `lo`.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hccl_py {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { close(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// Over a socket of AF_UNIX: a message with a descriptor beside its body. `to`: where the socket is not connected.
// As sendmsg and recvmsg: bytes of the body, or -1 and errno; `fd` is empty where none came.
ssize_t send_with_fd(int socket, std::span<const std::byte> body, int fd, int flags, const sockaddr_un* to = nullptr, socklen_t to_length = 0);
ssize_t receive_with_fd(int socket, std::span<std::byte> body, Fd& fd, int flags);

enum class Family : std::uint8_t { any = 0, v4 = 4, v6 = 6 };
// "auto", "4" or "6"; anything else is a ConfigError.
Family parse_family(std::string_view text);

struct IpAddress {
  Family family = Family::v4;  // never any
  std::array<std::uint8_t, 16> bytes{};  // network order; the first four of v4
  std::uint32_t scope = 0;     // interface index, of link-local v6 addresses; a matter of one host, not compared

  // "10.0.0.1", "fd00::1", "fe80::1%eth0"; a scope that is no interface of this host gives nothing.
  static std::optional<IpAddress> parse(std::string_view text);
  std::string text() const;
  int bits() const { return family == Family::v4 ? 32 : 128; }
  bool is_loopback() const;    // 127.0.0.0/8, ::1
  bool is_link_local() const;  // 169.254.0.0/16, fe80::/10
  bool same_network(const IpAddress& other, int prefix) const;
  friend bool operator==(const IpAddress& a, const IpAddress& b) { return a.family == b.family && a.bytes == b.bytes; }
};

struct Endpoint {
  IpAddress ip;
  std::uint16_t port = 0;

  // An IPv4 address mapped into IPv6, as a dual-stack listener sees it, becomes IPv4.
  static Endpoint from(const sockaddr_storage& address);
  // Returns the length of what was written.
  socklen_t to(sockaddr_storage& address) const;
  std::string text() const;  // "10.0.0.1:5000", "[fe80::1%eth0]:5000"
};

// Both ends of a connected socket; port 0 where the kernel does not say.
Endpoint local_endpoint(int fd);
Endpoint remote_endpoint(int fd);

struct LocalAddress {
  std::string interface;
  IpAddress ip;
  int prefix = 0;  // bits of the network part
};
// Of all interfaces that are up.
std::vector<LocalAddress> local_addresses();

// Which local addresses to use. A comma list of interface names (`eth0`), beginnings of names (`eth*`), addresses
// (`10.0.0.1`) and networks (`10.0.0.0/24`); with `^` in front everything but those. Empty: everything.
// Items that are absent on this host are fine as long as one is present: hosts differ, the list is the same.
class InterfaceList {
 public:
  // Throws ConfigError on an item that cannot be any of the four.
  static InterfaceList parse(std::string_view text);
  // Those of `all` that the list admits. Throws ConfigError, naming what exists, if it is none.
  std::vector<LocalAddress> select(const std::vector<LocalAddress>& all) const;
  bool empty() const { return items_.empty(); }

 private:
  struct Item {
    std::string name;  // of an interface; empty: an address or network
    bool is_beginning = false;
    IpAddress ip{};
    int prefix = 0;
    bool matches(const LocalAddress& address) const;
  };
  std::string text_;
  bool exclude_ = false;
  std::vector<Item> items_;
};

// The same for two processes iff a loopback address of one reaches the other: same boot, same network namespace.
// Random, hence equal to no other, where /proc does not say.
std::array<std::uint8_t, 16> network_stack_id();

// 16 random bytes.
std::array<std::uint8_t, 16> random_bytes16();

// "pid 123 (python)": who listens on a TCP port of this network namespace, as far as /proc lets us see; else "".
std::string port_holder(std::uint16_t port);

}  // namespace hccl_py
