// SPDX-License-Identifier: Apache-2.0
// What the kernel has counted of a TCP connection: read when somebody asks, so that the data path pays nothing for it.
#pragma once

#include <cstdint>

namespace hccl_py {

// Since the connection was made. `busy` counts while something was sent and not yet acknowledged; of that, `peer_full`
// while the peer had no room (it was late, or had no CPU), `self_full` while our own send buffer was too small. The
// kernel counts them in ticks (1 to 10 ms): exact on the average, not for a single message.
struct TcpTrace {
  std::uint64_t acked_bytes = 0;
  std::uint64_t busy_us = 0;
  std::uint64_t peer_full_us = 0;
  std::uint64_t self_full_us = 0;
  std::uint64_t resent_bytes = 0;
  std::uint64_t rate_Bps = 0;  // of the latest delivery; 0: not known
  std::uint32_t min_rtt_us = 0;
};

// False where the kernel does not say (before Linux 4.10), or the connection is closed.
bool read_trace(int fd, TcpTrace& trace);

}  // namespace hccl_py
