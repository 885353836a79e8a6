// SPDX-License-Identifier: Apache-2.0
// How the connections of a group come to be. The lower rank of a pair connects: it tries the peer's addresses best
// first, a new one every kStagger, all of them side by side, and keeps the first that answers the handshake; the others
// are closed unconfirmed. The higher rank accepts; whoever shows no valid Hello in time is a stranger and is dropped.
// One poll() loop does it all: nothing blocks on one peer or one stranger.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <map>

#include "hccl_py/error.hpp"
#include "hccl_py/tcp.hpp"
#include "hccl_py/tcp_congestion.hpp"
#include "tcp_handshake.hpp"

namespace hccl_py {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStagger{100};
constexpr milliseconds kFirstPause{50};     // before an address is tried again, doubling
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kStrangerTime{5000}; // for a Hello to arrive
constexpr milliseconds kCheckTime{100};
constexpr std::chrono::hours kLongestWait{24 * 365};
constexpr std::size_t kMaxPending = 256;    // unidentified connections, beside those we expect

Clock::time_point staggered(Clock::time_point from, std::size_t turn) {
  return from + kStagger * static_cast<milliseconds::rep>(turn);
}

// One address of a peer, tried by one connection.
struct Try {
  TcpCandidate candidate;
  Clock::time_point start_at;
  milliseconds pause = kFirstPause;
  bool started = false;
  Fd fd;  // empty: not under way
  bool connected = false;
  Nonce nonce{};
  Inbox inbox{kHelloAckBytes};
  std::string outcome = "not tried yet";
};

// A connection that this rank makes.
struct Outgoing {
  int peer = 0;
  int index = 0;
  std::size_t slot = 0;  // in TcpMesh::connections
  std::vector<Try> tries;
};

// A connection that somebody made to us and that is not confirmed yet.
struct Incoming {
  Fd fd;
  std::string who;
  Clock::time_point deadline;
  Inbox inbox{kHelloBytes};
  bool greeted = false;  // a valid Hello came
  Nonce nonce{};
  std::size_t slot = 0;
};

class Mesher {
 public:
  Mesher(const TcpListener& listener, const TcpMember& member, std::span<const std::vector<std::byte>> addresses,
         std::span<const int> peers, std::chrono::nanoseconds timeout, const std::function<void()>& check)
      : listener_(listener), member_(member), peers_(peers.begin(), peers.end()), check_(check), begin_(Clock::now()),
        deadline_(begin_ + std::min<Clock::duration>(timeout, kLongestWait)) {
    read_addresses(addresses);
    mesh_.connections.resize(peers_.size() * num_connections());
    for (std::size_t p = 0; p < peers_.size(); ++p) {
      if (peers_[p] > member_.rank) add_outgoing(p);
    }
  }

  TcpMesh run() {
    while (num_open_ < mesh_.connections.size()) {
      const auto now = Clock::now();
      if (now >= deadline_) throw missing(now);
      start_tries(now);
      drop_late_strangers(now);
      wait(now);
      if (check_) check_();
    }
    return std::move(mesh_);
  }

 private:
  std::size_t num_connections() const { return static_cast<std::size_t>(listener_.options().connections); }
  std::string me() const { return "rank " + std::to_string(member_.rank); }

  void read_addresses(std::span<const std::vector<std::byte>> addresses) {
    const auto world = static_cast<int>(addresses.size());
    if (member_.rank < 0 || member_.rank >= world) {
      throw ConfigError(me() + " has no address in a list of " + std::to_string(world));
    }
    all_.resize(addresses.size());
    for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
      if (!addresses[rank].empty()) all_[rank] = TcpAddress::decode(addresses[rank]);
    }
    for (const int peer : peers_) {
      const std::string who = me() + " and rank " + std::to_string(peer);
      if (peer < 0 || peer >= world || peer == member_.rank || std::count(peers_.begin(), peers_.end(), peer) != 1) {
        throw ConfigError(who + ": not a pair of two ranks, named once, of " + std::to_string(world));
      }
      const TcpAddress& theirs = all_[static_cast<std::size_t>(peer)];
      if (theirs.port == 0) throw ConfigError(who + ": rank " + std::to_string(peer) + " published no tcp address");
      if (theirs.oldest_version > kWireVersion || theirs.version < kOldestWireVersion) {
        const auto range = [](int oldest, int newest) {
          return std::to_string(oldest) + " to " + std::to_string(newest);
        };
        throw TransportUnavailableError(
            who + ": they speak wire versions " + range(theirs.oldest_version, theirs.version) + ", we " +
                range(kOldestWireVersion, kWireVersion) + "; install one version of hccl_py",
            "no common wire version");
      }
      if (theirs.connections != num_connections()) {
        throw ConfigError(who + ": tcp_connections is " + std::to_string(num_connections()) + " here and " +
                          std::to_string(theirs.connections) + " there; set it to the same on all ranks");
      }
    }
  }

  void add_outgoing(std::size_t p) {
    std::vector<std::string> unused;
    const auto candidates = tcp_candidates(listener_.locals(), listener_.options(),
                                           all_[static_cast<std::size_t>(member_.rank)], all_, peers_[p], unused);
    for (const std::string& reason : unused) unused_[peers_[p]] += "; " + reason;
    if (candidates.empty()) {
      const std::string reason = "no way to rank " + std::to_string(peers_[p]) + unused_[peers_[p]];
      throw TransportUnavailableError("tcp: " + me() + " has " + reason + "; here there is " +
                                      all_[static_cast<std::size_t>(member_.rank)].text(), reason);
    }
    for (std::size_t index = 0; index < num_connections(); ++index) {
      Outgoing outgoing{peers_[p], static_cast<int>(index), p * num_connections() + index, {}};
      for (const TcpCandidate& candidate : candidates) {
        Try& attempt = outgoing.tries.emplace_back();
        attempt.candidate = candidate;
        // Further connections of a pair wait for the first, to take the address that it found.
        attempt.start_at = index == 0 ? staggered(begin_, outgoing.tries.size() - 1) : Clock::time_point::max();
      }
      outgoing_.push_back(std::move(outgoing));
    }
  }

  bool open(std::size_t slot) const { return mesh_.connections[slot] != nullptr; }

  void add_connection(std::size_t slot, Fd fd) {
    const int peer = peers_[slot / num_connections()];
    if (listener_.options().congestion.empty()) choose_congestion(fd.get());
    mesh_.connections[slot] =
        std::make_unique<TcpConnection>(std::move(fd), peer, static_cast<int>(slot % num_connections()));
    ++num_open_;
  }

  // ---- the connecting side

  void start_tries(Clock::time_point now) {
    for (Outgoing& outgoing : outgoing_) {
      if (open(outgoing.slot)) continue;
      for (std::size_t i = 0; i < outgoing.tries.size(); ++i) {
        if (!outgoing.tries[i].fd && outgoing.tries[i].start_at <= now) start(outgoing, outgoing.tries[i]);
      }
    }
  }

  void start(Outgoing& outgoing, Try& attempt) {
    const Endpoint& remote = attempt.candidate.remote;
    const TcpOptions& options = listener_.options();
    // A later try does not hide what the one before met.
    if (!attempt.started) attempt.outcome = "no answer to the connection request (a firewall, or no route?)";
    attempt.started = true;
    attempt.connected = false;
    attempt.inbox = Inbox(kHelloAckBytes);
    const int domain = remote.ip.family == Family::v4 ? AF_INET : AF_INET6;
    attempt.fd = Fd(::socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!attempt.fd) {
      if (errno == EMFILE || errno == ENFILE) throw out_of_files(errno);
      return fail(outgoing, attempt, errno_text(errno));
    }
    const int fd = attempt.fd.get();
    tune(fd);
    size_buffers(fd, options.send_buffer_bytes, options.recv_buffer_bytes);
    if (!options.congestion.empty()) set_congestion(fd, options.congestion);
    sockaddr_storage address;
    if (attempt.candidate.has_source) {
#ifdef IP_BIND_ADDRESS_NO_PORT
      set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);  // the port is chosen per destination, later
#endif
      const socklen_t length = Endpoint{attempt.candidate.source, 0}.to(address);
      if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
        return fail(outgoing, attempt, "bind to " + attempt.candidate.source.text() + ": " + errno_text(errno));
      }
    }
    const socklen_t length = remote.to(address);
    // Interrupted, it goes on in the background like any other.
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return greet(outgoing, attempt);
    if (errno != EINPROGRESS && errno != EINTR) fail(outgoing, attempt, errno_text(errno));
  }

  void fail(Outgoing& outgoing, Try& attempt, const std::string& outcome) {
    attempt.fd.close();
    attempt.outcome = outcome;
    const auto now = Clock::now();
    attempt.start_at = now + attempt.pause;
    attempt.pause = std::min(attempt.pause * 2, kLongestPause);
    // No need to wait for the next address's turn.
    for (Try& other : outgoing.tries) {
      if (other.started) continue;
      other.start_at = std::min(other.start_at, now);
      break;
    }
  }

  void greet(Outgoing& outgoing, Try& attempt) {
    attempt.connected = true;
    attempt.nonce = random_bytes16();
    Hello hello;
    hello.job = member_.job;
    hello.communicator = member_.communicator;
    hello.epoch = member_.epoch;
    hello.from_rank = static_cast<std::uint32_t>(member_.rank);
    hello.to_rank = static_cast<std::uint32_t>(outgoing.peer);
    hello.connection = static_cast<std::uint32_t>(outgoing.index);
    hello.num_connections = static_cast<std::uint32_t>(num_connections());
    hello.nonce = attempt.nonce;
    if (!send_message<Hello, kHelloBytes>(attempt.fd.get(), hello)) return fail(outgoing, attempt, errno_text(errno));
    attempt.outcome = "connected, but the handshake is not answered yet";
  }

  void advance(Outgoing& outgoing, Try& attempt) {
    if (!attempt.connected) {
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(attempt.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return fail(outgoing, attempt, errno_text(error));
      return greet(outgoing, attempt);
    }
    switch (attempt.inbox.receive(attempt.fd.get())) {
      case Inbox::Result::partial: return;
      case Inbox::Result::ended: return fail(outgoing, attempt, "closed by the other side during the handshake");
      case Inbox::Result::failed: return fail(outgoing, attempt, errno_text(errno));
      case Inbox::Result::complete: break;
    }
    HelloAck ack;
    const WireFault fault = decode(attempt.inbox.message<kHelloAckBytes>(), ack);
    if (fault != WireFault::none) return fail(outgoing, attempt, std::string("answered with ") + describe(fault));
    if (ack.refusal != Refusal::none) return fail(outgoing, attempt, std::string("refused: ") + describe(ack.refusal));
    if (ack.echo != attempt.nonce || ack.rank != static_cast<std::uint32_t>(outgoing.peer)) {
      return fail(outgoing, attempt, "answered to somebody else's handshake");
    }
    Confirm confirm;
    confirm.echo = ack.nonce;
    if (!send_message<Confirm, kConfirmBytes>(attempt.fd.get(), confirm)) {
      return fail(outgoing, attempt, errno_text(errno));
    }
    add_connection(outgoing.slot, std::move(attempt.fd));
    for (Try& other : outgoing.tries) other.fd.close();
    if (outgoing.index == 0) release_others(outgoing.peer, attempt.candidate.remote);
  }

  // The first connection to `peer` stands: the others may begin, at the same address.
  void release_others(int peer, const Endpoint& found) {
    const auto now = Clock::now();
    for (Outgoing& outgoing : outgoing_) {
      if (outgoing.peer != peer || outgoing.index == 0) continue;
      std::stable_partition(outgoing.tries.begin(), outgoing.tries.end(), [&](const Try& attempt) {
        return attempt.candidate.remote.ip == found.ip && attempt.candidate.remote.ip.scope == found.ip.scope;
      });
      for (std::size_t i = 0; i < outgoing.tries.size(); ++i) outgoing.tries[i].start_at = staggered(now, i);
    }
  }

  // ---- the accepting side

  void accept_all() {
    for (;;) {
      sockaddr_storage address{};
      socklen_t length = sizeof address;
      Fd fd(::accept4(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EMFILE || errno == ENFILE) throw out_of_files(errno);
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) return;
        if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) {
          throw InternalError("accept4: " + errno_text(errno));
        }
        // The rest are errors of the connection that was about to be accepted, see accept(2).
        continue;
      }
      tune(fd.get());
      if (incoming_.size() >= kMaxPending + 2 * mesh_.connections.size()) drop_oldest_stranger();
      Incoming& incoming = incoming_.emplace_back();
      incoming.fd = std::move(fd);
      incoming.who = Endpoint::from(address).text();
      incoming.deadline = Clock::now() + kStrangerTime;
    }
  }

  void drop(Incoming& incoming, const std::string& why) {
    incoming.fd.close();
    ++mesh_.num_strangers;
    mesh_.last_stranger = incoming.who + ": " + why;
  }

  void drop_oldest_stranger() {
    for (Incoming& incoming : incoming_) {
      if (!incoming.fd || incoming.greeted) continue;
      return drop(incoming, "too many connections without a handshake");
    }
  }

  void drop_late_strangers(Clock::time_point now) {
    for (Incoming& incoming : incoming_) {
      if (incoming.fd && !incoming.greeted && incoming.deadline <= now) drop(incoming, "no handshake in time");
    }
  }

  void advance(Incoming& incoming) {
    const Inbox::Result result = incoming.inbox.receive(incoming.fd.get());
    if (!incoming.greeted && !incoming.inbox.may_start_with(kHelloMagic)) {
      return drop(incoming, describe(WireFault::magic));
    }
    switch (result) {
      case Inbox::Result::partial: return;
      case Inbox::Result::ended:
      case Inbox::Result::failed:
        // A peer that found a better address leaves like this, too.
        if (incoming.greeted) return incoming.fd.close();
        return drop(incoming, result == Inbox::Result::ended ? "closed before the handshake" : errno_text(errno));
      case Inbox::Result::complete: break;
    }
    if (incoming.greeted) return confirm(incoming);
    answer(incoming);
  }

  void answer(Incoming& incoming) {
    Hello hello;
    const WireFault fault = decode(incoming.inbox.message<kHelloBytes>(), hello);
    HelloAck ack;
    ack.refusal = fault == WireFault::none ? judge(hello, incoming.slot) : Refusal::version;
    ack.version = std::min(hello.version, kWireVersion);
    ack.rank = static_cast<std::uint32_t>(member_.rank);
    ack.echo = hello.nonce;
    ack.nonce = incoming.nonce = random_bytes16();
    const bool sent = send_message<HelloAck, kHelloAckBytes>(incoming.fd.get(), ack);
    // A second connection for an open slot is a peer's other address, late: no stranger.
    if (!sent || ack.refusal == Refusal::connection) return incoming.fd.close();
    if (ack.refusal != Refusal::none) return drop(incoming, describe(ack.refusal));
    incoming.greeted = true;
    incoming.inbox = Inbox(kConfirmBytes);
  }

  Refusal judge(const Hello& hello, std::size_t& slot) const {
    if (hello.job != member_.job || hello.communicator != member_.communicator) return Refusal::job;
    if (hello.epoch != member_.epoch) return Refusal::epoch;
    const auto at = std::find_if(peers_.begin(), peers_.end(), [&](int peer) {
      return static_cast<std::uint32_t>(peer) == hello.from_rank && peer < member_.rank;
    });
    if (at == peers_.end() || hello.to_rank != static_cast<std::uint32_t>(member_.rank)) return Refusal::rank;
    if (hello.num_connections != num_connections() || hello.connection >= num_connections()) return Refusal::connection;
    slot = static_cast<std::size_t>(at - peers_.begin()) * num_connections() + hello.connection;
    return open(slot) ? Refusal::connection : Refusal::none;
  }

  void confirm(Incoming& incoming) {
    Confirm message;
    if (decode(incoming.inbox.message<kConfirmBytes>(), message) != WireFault::none || message.echo != incoming.nonce ||
        open(incoming.slot)) {
      return drop(incoming, "a wrong confirmation of the handshake");
    }
    add_connection(incoming.slot, std::move(incoming.fd));
  }

  // ---- both

  void wait(Clock::time_point now) {
    struct Target {
      Incoming* incoming = nullptr;
      Outgoing* outgoing = nullptr;
      Try* attempt = nullptr;
    };
    auto until = check_ ? std::min(deadline_, now + kCheckTime) : deadline_;
    std::vector<pollfd> fds;
    std::vector<Target> targets;
    const auto add = [&](int fd, short events, Target target) {
      fds.push_back({fd, events, 0});
      targets.push_back(target);
    };
    for (Incoming& incoming : incoming_) {
      add(incoming.fd.get(), POLLIN, {&incoming, nullptr, nullptr});
      if (!incoming.greeted) until = std::min(until, incoming.deadline);
    }
    for (Outgoing& outgoing : outgoing_) {
      if (open(outgoing.slot)) continue;
      for (Try& attempt : outgoing.tries) {
        if (attempt.fd) {
          add(attempt.fd.get(), attempt.connected ? POLLIN : POLLOUT, {nullptr, &outgoing, &attempt});
        } else {
          until = std::min(until, attempt.start_at);
        }
      }
    }
    add(listener_.fd(), POLLIN, {});
    const auto ms = std::chrono::ceil<milliseconds>(std::max(until - now, Clock::duration::zero())).count();
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(std::min<decltype(ms)>(ms, 60'000)));
    for (std::size_t i = 0; ready > 0 && i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const Target& target = targets[i];
      if (target.incoming != nullptr) {
        advance(*target.incoming);
      } else if (target.attempt == nullptr) {
        accept_all();
      } else if (target.attempt->fd) {  // else another address of the peer won in this round
        advance(*target.outgoing, *target.attempt);
      }
    }
    std::erase_if(incoming_, [](const Incoming& incoming) { return !incoming.fd; });
  }

  TransportUnavailableError out_of_files(int error) const {
    return TransportUnavailableError("tcp: " + me() + " needs more open files: " + errno_text(error) +
                                     "; raise the limit (ulimit -n) or lower tcp_connections", errno_text(error));
  }

  CollectiveTimeoutError missing(Clock::time_point now) const {
    std::string details;
    int first_missing = -1, num_missing = 0;
    for (std::size_t p = 0; p < peers_.size(); ++p) {
      std::size_t num = 0;
      for (std::size_t index = 0; index < num_connections(); ++index) {
        if (open(p * num_connections() + index)) ++num;
      }
      if (num == num_connections()) continue;
      if (num_missing++ == 0) first_missing = peers_[p];
      details += "\n  rank " + std::to_string(peers_[p]) + ": " + std::to_string(num) + " of " +
                 std::to_string(num_connections()) + " connections";
      if (peers_[p] < member_.rank) {
        details += "; it is to connect to us at " + all_[static_cast<std::size_t>(member_.rank)].text();
        continue;
      }
      for (const Outgoing& outgoing : outgoing_) {
        if (outgoing.peer != peers_[p] || open(outgoing.slot)) continue;
        for (const Try& attempt : outgoing.tries) {
          details += "; " + attempt.candidate.remote.text() + ": " + attempt.outcome;
        }
        break;
      }
      const auto unused = unused_.find(peers_[p]);
      if (unused != unused_.end()) details += unused->second;
    }
    if (mesh_.num_strangers > 0) {
      details += "\n  " + std::to_string(mesh_.num_strangers) + " other connections were dropped, the last from " +
                 mesh_.last_stranger;
    }
    const double waited_s = std::chrono::duration<double>(now - begin_).count();
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", waited_s);
    const std::string share = std::to_string(num_missing) + " of " + std::to_string(peers_.size());
    return CollectiveTimeoutError(
        "tcp: " + me() + " waited " + seconds + " s; " + share + " peers are not connected" + details, member_.rank,
        first_missing, -1, waited_s);
  }

  const TcpListener& listener_;
  const TcpMember member_;
  const std::vector<int> peers_;
  const std::function<void()>& check_;
  const Clock::time_point begin_;
  const Clock::time_point deadline_;
  std::vector<TcpAddress> all_;
  std::map<int, std::string> unused_;  // by peer: addresses that were not tried, and why
  std::vector<Outgoing> outgoing_;
  std::deque<Incoming> incoming_;
  TcpMesh mesh_;
  std::size_t num_open_ = 0;
};

}  // namespace

TcpMesh connect_tcp(const TcpListener& listener, const TcpMember& member,
                    std::span<const std::vector<std::byte>> addresses, std::span<const int> peers,
                    std::chrono::nanoseconds timeout, const std::function<void()>& check) {
  return Mesher(listener, member, addresses, peers, timeout, check).run();
}

}  // namespace hccl_py
