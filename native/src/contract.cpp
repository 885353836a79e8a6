// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/contract.hpp"

#include <algorithm>
#include <array>

namespace hccl_py {
namespace {

constexpr std::uint32_t kContractStep = 0xffffffff;  // no message of a plan has this number

}  // namespace

ContractExchange::ContractExchange(Ports& ports, std::vector<std::uint32_t> peers, std::uint32_t communicator)
    : ports_(ports), peers_(std::move(peers)), communicator_(communicator), to_send_(peers_.size()), heard_(peers_.size()) {}

void ContractExchange::begin(const Fingerprint& mine) {
  mine_ = mine;
  failure_ = {};
  std::fill(to_send_.begin(), to_send_.end(), kBytes);
  std::fill(heard_.begin(), heard_.end(), false);
}

ContractExchange::Outcome ContractExchange::advance() {
  std::array<std::byte, kBytes> message;
  FrameHeader header;
  header.flags = kFrameHasFingerprint;
  header.communicator = communicator_;
  header.sequence_or_tag = mine_.sequence;
  header.plan_digest = mine_.plan_digest;
  header.step = kContractStep;
  const std::span<std::byte, kBytes> all(message);
  encode(header, all.first<kFrameHeaderBytes>());
  encode(mine_, all.last<kFingerprintBytes>());
  bool moved = false, over = true;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (to_send_[i] != 0) {
      SendPipe& pipe = *ports_.send(peers_[i], 0).pipe;
      const std::size_t taken = pipe.write(std::span<const std::byte>(message).last(to_send_[i]), {}, false);
      to_send_[i] -= static_cast<std::uint32_t>(taken);
      moved |= taken != 0;
    }
    const bool sent = to_send_[i] == 0 && ports_.send(peers_[i], 0).pipe->flush();
    moved |= !heard_[i] && hear(i);
    over &= sent && heard_[i];
    if (failure_.kind == FailureKind::peer_lost || failure_.kind == FailureKind::transport) return Outcome::done;
  }
  return over ? Outcome::done : moved ? Outcome::moved : Outcome::idle;
}

bool ContractExchange::hear(std::size_t i) {
  const int peer = static_cast<int>(peers_[i]);
  RecvPipe& pipe = *ports_.recv(peers_[i], 0).pipe;
  const std::span<const std::byte> message = pipe.peek(kBytes, kBytes);
  if (message.size() < kBytes) {
    if (pipe.state() != PipeState::open) failure_ = {FailureKind::peer_lost, peer, -1, mine_.sequence, 0, {}, "the connection was closed"};
    return false;
  }
  FrameHeader header;
  if (decode(message.first<kFrameHeaderBytes>(), header) != WireFault::none || header.step != kContractStep) {
    failure_ = {FailureKind::transport, peer, -1, mine_.sequence, 0, {}, "expected the contract of the next collective, received something else"};
    return false;
  }
  Fingerprint theirs;
  decode(message.subspan<kFrameHeaderBytes, kFingerprintBytes>(), theirs);
  pipe.consume(kBytes);
  heard_[i] = true;
  if (!same_contract(mine_, theirs) && !failure_) failure_ = {FailureKind::desync, peer, -1, mine_.sequence, 0, theirs, ""};
  return true;
}

}  // namespace hccl_py
