// SPDX-License-Identifier: Apache-2.0
// The congestion control of a connection, and its pace. Apart from the other files for <linux/tcp.h>, which cannot be
// included beside <netinet/tcp.h> and knows more.
#include "hccl_py/tcp_congestion.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>

namespace hccl_py {
namespace {

constexpr std::uint32_t kNear_us = 1000;  // a round trip within a cluster
constexpr std::size_t kNameBytes = 16;    // TCP_CA_NAME_MAX

bool set(int fd, std::string_view name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

// Near peers, and the system's choice is one that paces.
bool paced_without_need(int fd) {
  char name[kNameBytes + 1] = {};
  socklen_t length = kNameBytes;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0 || std::strncmp(name, "bbr", 3) != 0) return false;
  tcp_info info{};
  length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (length < offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return false;
  return info.tcpi_min_rtt < kNear_us;
}

}  // namespace

bool set_congestion(int fd, const std::string& name) { return set(fd, name); }

void choose_congestion(int fd) {
  if (paced_without_need(fd) && !set(fd, "cubic")) set(fd, "reno");
}

bool set_pace(int fd, double most_Bps) {
  constexpr auto kUnlimited = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t rate = most_Bps > 0 && most_Bps < 1e18 ? std::max(static_cast<std::uint64_t>(most_Bps), std::uint64_t{1}) : kUnlimited;
  return ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == 0;
}

}  // namespace hccl_py
