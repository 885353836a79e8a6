// SPDX-License-Identifier: Apache-2.0
// The ends of all channels of one rank, as the executor finds them: by peer and channel.
#pragma once

#include <cstdint>
#include <vector>

#include "hccl_py/pipe.hpp"

namespace hccl_py {

// `turn` counts the messages done in the running collective: operand k of a port may act once turn == k.
struct SendPort {
  SendPipe* pipe = nullptr;
  std::uint32_t peer = 0;
  std::uint16_t channel = 0;
  bool remote = false;  // another host: the contract check travels with the first frame
  std::uint32_t turn = 0;
};

struct RecvPort {
  RecvPipe* pipe = nullptr;
  std::uint32_t peer = 0;
  std::uint16_t channel = 0;
  bool remote = false;
  std::uint32_t turn = 0;
};

class Ports {
 public:
  Ports(std::uint32_t world, std::uint32_t channels)
      : channels_(channels), send_(std::size_t{world} * channels), recv_(std::size_t{world} * channels) {}

  std::uint32_t channels() const { return channels_; }
  SendPort& send(std::uint32_t peer, std::uint32_t channel) { return send_[std::size_t{peer} * channels_ + channel]; }
  RecvPort& recv(std::uint32_t peer, std::uint32_t channel) { return recv_[std::size_t{peer} * channels_ + channel]; }

 private:
  std::uint32_t channels_;
  std::vector<SendPort> send_;
  std::vector<RecvPort> recv_;
};

}  // namespace hccl_py
