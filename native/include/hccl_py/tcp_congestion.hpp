// SPDX-License-Identifier: Apache-2.0
// How a TCP connection finds its speed.
#pragma once

#include <cstdint>
#include <string>

namespace hccl_py {

// False where the kernel has no such congestion control, or this user may not choose it.
bool set_congestion(int fd, const std::string& name);
// The choice where the user made none, for a connection that stands: the system's, but that bbr paces every packet by a
// timer, which between hosts of one cluster (a round trip below 1 ms) costs a third of the throughput of a core. There
// it is cubic, or reno where that may not be chosen.
void choose_congestion(int fd);
// At most so many bytes a second; 0: as many as go. False if the kernel refuses.
bool set_pace(int fd, double most_Bps);

}  // namespace hccl_py
