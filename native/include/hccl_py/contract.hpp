// SPDX-License-Identifier: Apache-2.0
// Strict mode between hosts: before a collective touches anything, every rank tells every rank of another host what it
// is about to run and hears the same from it. Costs one round trip a collective.
#pragma once

#include <cstdint>
#include <vector>

#include "hccl_py/call.hpp"
#include "hccl_py/ports.hpp"

namespace hccl_py {

class ContractExchange {
 public:
  enum class Outcome : std::uint8_t { moved, idle, done };

  // Goes by channel 0 to each of `peers`.
  ContractExchange(Ports& ports, std::vector<std::uint32_t> peers, std::uint32_t communicator);

  void begin(const Fingerprint& mine);
  // Done once all peers have been told and heard, whatever they said: the channels are in step again then.
  Outcome advance();
  // After `done`: the first peer that disagrees, if any; or a peer whose connection broke.
  const Failure& failure() const { return failure_; }

 private:
  static constexpr std::uint32_t kBytes = kFrameHeaderBytes + kFingerprintBytes;
  bool hear(std::size_t i);

  Ports& ports_;
  std::vector<std::uint32_t> peers_;
  std::uint32_t communicator_;
  Fingerprint mine_{};
  Failure failure_;
  std::vector<std::uint32_t> to_send_;  // bytes left, by peer
  std::vector<bool> heard_;
};

}  // namespace hccl_py
