// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/introduction.hpp"

#include <unistd.h>

#include "hccl_py/pack.hpp"
#include "hccl_py/socket.hpp"

namespace hccl_py {
namespace {

constexpr std::uint32_t kIntroductionVersion = 1;

}  // namespace

std::vector<std::byte> Introduction::encode() const {
  return Packer()
      .put(kIntroductionVersion)
      .put(host)
      .put(door)
      .put(bell)
      .put(nonce)
      .put(ring_bytes)
      .put(slot_bytes)
      .put(channels)
      .put(segment_bytes)
      .put(std::span(tcp))
      .take();
}

Introduction Introduction::decode(std::span<const std::byte> bytes) {
  Unpacker in(bytes);
  if (in.get<std::uint32_t>() != kIntroductionVersion)
    throw ConfigError("the ranks run different versions of hccl_py");
  Introduction out;
  out.host = in.get_text();
  out.door = in.get_text();
  out.bell = in.get_text();
  out.nonce = in.get<std::uint64_t>();
  out.ring_bytes = in.get<std::uint32_t>();
  out.slot_bytes = in.get<std::uint32_t>();
  out.channels = in.get<std::uint32_t>();
  out.segment_bytes = in.get<std::uint64_t>();
  out.tcp = in.get_bytes();
  return out;
}

std::string host_identity(const std::string& override) {
  if (!override.empty()) return "id:" + override;
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string identity = std::string("host:") + name + ":";
  for (std::uint8_t byte : network_stack_id()) {
    constexpr char digits[] = "0123456789abcdef";
    identity += digits[byte >> 4];
    identity += digits[byte & 15];
  }
  return identity;
}

std::vector<std::uint32_t> ranks_of_host(const std::vector<Introduction>& all, std::uint32_t rank) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t i = 0; i < all.size(); ++i)
    if (i == rank || (!all[rank].host.empty() && all[i].host == all[rank].host && !all[i].door.empty() && !all[rank].door.empty()))
      ranks.push_back(i);
  return ranks;
}

}  // namespace hccl_py
