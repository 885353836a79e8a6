// SPDX-License-Identifier: Apache-2.0
// Group: how it comes to be connected.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "hccl_py/error.hpp"
#include "hccl_py/group.hpp"
#include "hccl_py/introduction.hpp"
#include "hccl_py/progress.hpp"
#include "hccl_py/tcp_congestion.hpp"

namespace hccl_py {
namespace {

constexpr std::uint32_t kFirstSpins = 128;  // two to four microseconds
constexpr std::uint64_t kEagerBytes = 16 * 1024;  // messages up to here are sent unasked

// Plans may use as many channels as there are TCP connections; point-to-point has one more of its own.
std::uint32_t plan_channels(const GroupOptions& options) { return static_cast<std::uint32_t>(std::max(1, options.tcp.connections)); }

}  // namespace

Group::Group(std::uint32_t rank, std::uint32_t world, GroupOptions options, std::shared_ptr<Hub> hub)
    : rank_(rank),
      world_(world),
      options_(std::move(options)),
      hub_(std::move(hub)),
      nonce_(random_u64()),
      local_index_(world, -1),
      waiter_(WaitPolicy{}) {
  Forks::watch();
  if (world == 0 || rank >= world)
    throw ConfigError("rank " + std::to_string(rank) + " is outside a world of " + std::to_string(world));
  if (options_.segment_bytes < 64 || options_.segment_bytes % 64 != 0)
    throw ConfigError("segment_bytes must be a multiple of 64, not " + std::to_string(options_.segment_bytes));
  if (!(options_.timeout_s > 0)) throw ConfigError("the timeout must be positive");
  poller_.watch(hub_ != nullptr ? hub_->bell(rank).fd() : bell_.fd(), bell_readiness_);
  bell_readiness_.readable = false;
  if (hub_ != nullptr) {
    if (hub_->world() != world) throw ConfigError("the hub was made for " + std::to_string(hub_->world()) + " ranks, not " + std::to_string(world));
    for (std::uint32_t i = 0; i < world; ++i) local_ranks_.push_back(i);
    bells_ = &hub_->bells();
    set_up_board(hub_->board());
    ports_ = std::make_unique<Ports>(world, hub_->channels() - 1);
    p2p_ = std::make_unique<PointToPoint>(world, rank, communicator_);
    for (std::uint32_t peer = 0; peer < world; ++peer) {
      if (peer == rank) continue;
      for (std::uint32_t c = 0; c + 1 < hub_->channels(); ++c) {
        ports_->send(peer, c) = {&hub_->send_pipe(rank, peer, c), peer, static_cast<std::uint16_t>(c)};
        ports_->recv(peer, c) = {&hub_->recv_pipe(peer, rank, c), peer, static_cast<std::uint16_t>(c)};
      }
      p2p_->attach(peer, hub_->send_pipe(rank, peer, hub_->channels() - 1), hub_->recv_pipe(peer, rank, hub_->channels() - 1));
    }
    return;
  }
  if (world > 1 && options_.use_shm) door_ = std::make_unique<ShmDoor>();
  if (world > 1 && options_.use_tcp) {
    TcpOptions tcp = options_.tcp;
    tcp.connections = static_cast<int>(plan_channels(options_)) + 1;
    listener_ = std::make_unique<TcpListener>(tcp);
  }
}

std::vector<std::byte> Group::address() const {
  Introduction me;
  me.host = host_identity(options_.host_id);
  if (door_) me.door = door_->name();
  me.bell = bell_.name();
  me.nonce = nonce_;
  me.ring_bytes = options_.shm.ring_bytes;
  me.slot_bytes = options_.shm.slot_bytes;
  me.channels = plan_channels(options_);
  me.segment_bytes = options_.segment_bytes;
  if (listener_) me.tcp = listener_->address();
  return me.encode();
}

std::vector<std::byte> Group::join(const std::vector<std::vector<std::byte>>& addresses, double timeout_s) {
  if (addresses.size() != world_) throw ConfigError("one address per rank is needed");
  addresses_ = addresses;
  std::vector<Introduction> all;
  for (const auto& address : addresses) all.push_back(Introduction::decode(address));
  for (std::uint32_t i = 0; i < world_; ++i)
    if (all[i].ring_bytes != all[rank_].ring_bytes || all[i].slot_bytes != all[rank_].slot_bytes ||
        all[i].channels != all[rank_].channels || all[i].segment_bytes != all[rank_].segment_bytes)
      throw ConfigError("ranks " + std::to_string(rank_) + " and " + std::to_string(i) +
                        " have different buffer sizes or numbers of connections; set HCCL_PY_RING_BYTES, HCCL_PY_SLOT_BYTES, "
                        "HCCL_PY_SEGMENT_BYTES and HCCL_PY_CONNECTIONS alike on all ranks");
  communicator_ = static_cast<std::uint32_t>(all[0].nonce);
  local_ranks_ = ranks_of_host(all, rank_);
  std::string why;
  if (local_ranks_.size() > 1) {
    std::vector<std::string> doors, bells;
    std::vector<std::int32_t> ranks;
    std::uint32_t me = 0;
    for (std::uint32_t r : local_ranks_) {
      if (r == rank_) me = static_cast<std::uint32_t>(ranks.size());
      doors.push_back(all[r].door);
      bells.push_back(all[r].bell);
      ranks.push_back(static_cast<std::int32_t>(r));
    }
    ShmOptions shm = options_.shm;
    shm.channels = plan_channels(options_) + 1;
    try {
      shm_ = std::make_unique<ShmHost>(*door_, bell_, doors, bells, ranks, me, all[local_ranks_[0]].nonce, shm, deadline(timeout_s));
    } catch (const TransportUnavailableError& e) {
      why = std::string(e.what()) + (e.reason().empty() ? "" : ": " + e.reason());
    } catch (const CollectiveTimeoutError& e) {
      why = e.what();
    }
  }
  door_.reset();
  // The report: the reason why memory could not be shared, or nothing.
  const auto bytes = std::as_bytes(std::span(why));
  return {bytes.begin(), bytes.end()};
}

void Group::connect(const std::vector<std::vector<std::byte>>& reports, double timeout_s) {
  if (reports.size() != world_ || addresses_.size() != world_) throw ConfigError("connect() needs join()'s reports of all ranks");
  for (std::uint32_t r : local_ranks_)
    if (!reports[r].empty() && warning_.empty())
      warning_ = "rank " + std::to_string(r) + " could not share memory with the ranks of its host: " +
                 std::string(reinterpret_cast<const char*>(reports[r].data()), reports[r].size());
  if (!warning_.empty()) {
    if (!options_.use_tcp) throw TransportUnavailableError(warning_ + "; and tcp is not allowed", warning_);
    shm_.reset();
    local_ranks_ = {rank_};
  }
  if (shm_) {
    bells_ = &shm_->bells();
    set_up_board(shm_->board());
    no_pulls_ = shm_->probe_peers();
    landings_.assign(world_, nullptr);
  } else {
    own_board_memory_ = std::make_unique<BoardMemory>();
    set_up_board(Board(own_board_memory_->bytes, 1, BoardMemory::kSlotBytes));
    own_bells_ = Bells(board_, &bell_, {bell_.name()});
    bells_ = &own_bells_;
  }
  const std::uint32_t channels = plan_channels(options_);
  ports_ = std::make_unique<Ports>(world_, channels);
  p2p_ = std::make_unique<PointToPoint>(world_, rank_, communicator_, kEagerBytes, options_.shm.private_from_bytes);
  std::vector<int> remote;
  for (std::uint32_t peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    if (!local(peer)) {
      remote.push_back(static_cast<int>(peer));
      continue;
    }
    const auto index = static_cast<std::uint32_t>(local_index_[peer]);
    for (std::uint32_t c = 0; c < channels; ++c) {
      ports_->send(peer, c) = {&shm_->send_pipe(index, c), peer, static_cast<std::uint16_t>(c)};
      ports_->recv(peer, c) = {&shm_->recv_pipe(index, c), peer, static_cast<std::uint16_t>(c)};
    }
    p2p_->attach(peer, shm_->send_pipe(index, channels), shm_->recv_pipe(index, channels));
  }
  remote_ = !remote.empty();
  if (remote_ && options_.spins < 0) {
    const auto ranks = static_cast<std::uint32_t>(local_ranks_.size());
    waiter_ = Waiter(WaitPolicy::choose(ranks, options_.usable_cpus).with_wires(ranks, options_.usable_cpus));
  }
  if (remote_) connect_remote(remote, timeout_s);
  listener_.reset();
  addresses_.clear();
}

void Group::connect_remote(const std::vector<int>& peers, double timeout_s) {
  std::vector<std::vector<std::byte>> tcp;
  for (const auto& address : addresses_) tcp.push_back(Introduction::decode(address).tcp);
  for (int peer : peers)
    if (!listener_ || tcp[static_cast<std::size_t>(peer)].empty())
      throw TransportUnavailableError("no transport reaches rank " + std::to_string(peer) + " from rank " + std::to_string(rank_) +
                                          ": it is on another host and tcp is off (HCCL_PY_TRANSPORTS)",
                                      "tcp is off");
  TcpMember member;
  member.rank = static_cast<int>(rank_);
  member.job = job_id_of(tcp);
  member.communicator = communicator_;
  const auto stop_if_interrupted = [this] {
    if (options_.interrupted != nullptr && options_.interrupted()) throw BrokenGroupError("interrupted while connecting");
  };
  mesh_ = connect_tcp(*listener_, member, tcp, peers, std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(timeout_s, 1e9) * 1e9)),
                      stop_if_interrupted);
  for (const auto& connection : mesh_.connections) {
    connection->watch(poller_);
    const auto peer = static_cast<std::uint32_t>(connection->peer());
    if (connection->index() == 0) {  // point-to-point and bad news
      p2p_->attach(peer, connection->sender(), connection->receiver());
      continue;
    }
    const auto c = static_cast<std::uint32_t>(connection->index() - 1);
    ports_->send(peer, c) = {&connection->sender(), peer, static_cast<std::uint16_t>(c), true};
    ports_->recv(peer, c) = {&connection->receiver(), peer, static_cast<std::uint16_t>(c), true};
  }
  if (options_.strict)
    contract_ = std::make_unique<ContractExchange>(*ports_, std::vector<std::uint32_t>(peers.begin(), peers.end()), communicator_);
}

void Group::set_up_board(Board board) {
  board_ = board;
  for (std::uint32_t i = 0; i < local_ranks_.size(); ++i) {
    local_index_[local_ranks_[i]] = static_cast<int>(i);
    if (local_ranks_[i] == rank_) my_local_ = i;
  }
  if (board_.num_ranks() > 2) shared_fold_ = std::make_unique<SharedFold>(board_, *bells_, my_local_, local_ranks_);
  WaitPolicy policy = WaitPolicy::choose(static_cast<std::uint32_t>(local_ranks_.size()), options_.usable_cpus);
  if (options_.spins >= 0) policy.spins = static_cast<std::uint32_t>(options_.spins);
  waiter_ = Waiter(policy);
  if (!hub_ && local_ranks_.size() <= options_.usable_cpus) placement_ = Placement(board_, my_local_);
  // Over loopback the others are threads of this process: they may need what our caller holds.
  first_spins_ = hub_ ? 0 : std::min(policy.spins, kFirstSpins);
}

bool Group::pace(std::uint32_t peer, std::uint32_t channel, double most_Bps) {
  if (peer >= world_ || channel >= channels())
    throw ConfigError("there is no channel " + std::to_string(channel) + " to rank " + std::to_string(peer) + ": this group has " +
                      std::to_string(world_) + " ranks and " + std::to_string(channels()) + " channels to each");
  if (!(most_Bps >= 0)) throw ConfigError("a channel cannot be paced to " + std::to_string(most_Bps) + " bytes a second");
  for (const auto& connection : mesh_.connections) {
    if (connection->peer() != static_cast<int>(peer) || connection->index() != static_cast<int>(channel) + 1) continue;
    return set_pace(connection->fd(), most_Bps);
  }
  return false;
}

std::vector<Group::ConnectionTrace> Group::trace() const {
  std::vector<ConnectionTrace> found;
  for (const auto& connection : mesh_.connections) {
    ConnectionTrace one{static_cast<std::uint32_t>(connection->peer()), static_cast<std::uint32_t>(connection->index()), {}};
    if (read_trace(connection->fd(), one.counted)) found.push_back(one);
  }
  return found;
}

const char* Group::transport_to(std::uint32_t peer) const {
  if (peer >= world_) throw ConfigError("rank " + std::to_string(peer) + " is outside a world of " + std::to_string(world_));
  if (peer == rank_) return "self";
  if (hub_) return "loopback";
  return local(peer) ? "shm" : "tcp";
}

}  // namespace hccl_py
