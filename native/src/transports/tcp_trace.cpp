// SPDX-License-Identifier: Apache-2.0
// The kernel's counters of a connection. Apart from the other files for <linux/tcp.h>, as tcp_congestion.cpp.
#include "hccl_py/tcp_trace.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace hccl_py {

bool read_trace(int fd, TcpTrace& trace) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (fd < 0 || ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (length < offsetof(tcp_info, tcpi_sndbuf_limited) + sizeof info.tcpi_sndbuf_limited) return false;
  trace.acked_bytes = info.tcpi_bytes_acked;
  trace.busy_us = info.tcpi_busy_time;
  trace.peer_full_us = info.tcpi_rwnd_limited;
  trace.self_full_us = info.tcpi_sndbuf_limited;
  trace.rate_Bps = info.tcpi_delivery_rate;
  trace.min_rtt_us = info.tcpi_min_rtt;
  if (length >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) trace.resent_bytes = info.tcpi_bytes_retrans;
  return true;
}

}  // namespace hccl_py
