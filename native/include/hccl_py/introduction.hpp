// SPDX-License-Identifier: Apache-2.0
// What a rank says of itself before anything is connected, and which ranks share its host by that.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hccl_py {

struct Introduction {
  std::string host;  // equal for ranks that may share memory; "" shares with nobody
  std::string door;  // of shm; empty if that is off
  std::string bell;
  std::uint64_t nonce = 0;
  std::uint32_t ring_bytes = 0, slot_bytes = 0, channels = 0;
  std::uint64_t segment_bytes = 0;
  std::vector<std::byte> tcp;  // the listener's address; empty if tcp is off

  std::vector<std::byte> encode() const;
  static Introduction decode(std::span<const std::byte> bytes);
};

// Host name, boot and network namespace together; HCCL_PY_HOST_ID replaces it.
std::string host_identity(const std::string& override);

// The ranks with the same host as `rank`, ascending; `rank` alone if it shares with nobody.
std::vector<std::uint32_t> ranks_of_host(const std::vector<Introduction>& all, std::uint32_t rank);

}  // namespace hccl_py
