// SPDX-License-Identifier: Apache-2.0
// The TCP transport. A TcpListener gives the address that ranks exchange; connect_tcp() makes the TcpConnections of one
// rank from all addresses; a TcpConnection is two pipes on one socket; a Poller says which sockets are worth a system
// call. Connections and poller belong to the holder of the group's driver token; nothing here has a thread or a lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hccl_py/pipe.hpp"
#include "hccl_py/socket.hpp"
#include "hccl_py/wire.hpp"

namespace hccl_py {

struct TcpOptions {
  std::string interfaces;         // see InterfaceList
  std::uint16_t first_port = 0;   // 0: any free port; else the listener takes the first free one
  std::uint16_t last_port = 0;    //    of first_port..last_port
  int connections = 1;            // per pair of ranks, 1..128; the same on all ranks
  Family family = Family::any;
  std::size_t send_buffer_bytes = 0;  // of the kernel; 0: its own tuning, which is better on most networks
  std::size_t recv_buffer_bytes = 0;
  std::string congestion;         // the congestion control; empty: see choose_congestion()
};

// What is known of a watched descriptor. `readable` and `writable` stay true until a system call found nothing to do,
// and become true again in Poller::poll(). Unwatched descriptors are always tried.
struct Readiness {
  bool readable = true;
  bool writable = true;
  bool hangup = false;  // the peer closed, or an error is pending: more reading ends the pipe
  bool watched = false;
  bool asked = false;     // somebody wanted to read while it was not readable
};

// One epoll instance, edge triggered.
class Poller {
 public:
  Poller();  // throws TransportUnavailableError
  // `readiness` must stay where it is until forget(). Any descriptor that epoll takes: sockets, an eventfd, a doorbell;
  // who sees `readable` on one of the latter drains it and sets it false.
  void watch(int fd, Readiness& readiness);
  void forget(int fd, Readiness& readiness);
  // Waits until a descriptor has news, or the time is over (negative: for ever), or a signal came; returns how many
  // descriptors had news. To be called with a time other than 0 only when no set flag leaves work to do.
  int poll(std::chrono::nanoseconds timeout);
  int fd() const { return epoll_.get(); }

 private:
  int wait(std::chrono::nanoseconds timeout);

  static constexpr int kBatch = 64;
  Fd epoll_;
  bool has_pwait2_ = true;
};

// A connected socket and its two pipes. Not movable: pipes and poller point here.
class TcpConnection {
 public:
  // Takes a connected, non-blocking socket to rank `peer`.
  TcpConnection(Fd fd, int peer, int index);
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;
  ~TcpConnection();

  SendPipe& sender() { return sender_; }
  RecvPipe& receiver() { return receiver_; }
  int peer() const { return peer_; }
  int index() const { return index_; }  // among the connections of the pair
  int fd() const { return fd_.get(); }

  // The poller must outlive the connection.
  void watch(Poller& poller);
  const Readiness& readiness() const { return readiness_; }
  // The next read is to be tried, whatever is known: whoever polls saves the detour by the poller.
  void try_again() {
    readiness_.asked = false;
    readiness_.readable = true;
  }
  // Tells the peer that nothing more comes, what is staged excepted: call flush() first. Reading goes on.
  void shutdown_send();
  // Idempotent; both pipes are closed afterwards.
  void close();
  // "rank 3 (tcp connection 0, 10.0.0.1:4000 -> 10.0.0.2:5000)"
  const std::string& describe() const { return description_; }
  // Why a pipe failed: "Connection reset by peer (errno 104)"; empty if none did.
  std::string failure() const;

 private:
  static constexpr std::size_t kBufferBytes = 256 * 1024;
  struct alignas(64) Buffer {
    std::byte bytes[kBufferBytes];
  };

  // Staged bytes are those of `first_`, then those of `second_`; the latter lies before the former in the buffer and is
  // non-empty only while the buffer has wrapped around, so that every free range handed out is contiguous.
  class Sender final : public SendPipe {
   public:
    explicit Sender(TcpConnection& connection);
    std::span<std::byte> reserve(std::size_t want) override;
    void commit(std::size_t bytes) override;
    std::size_t write(std::span<const std::byte> head, std::span<const std::byte> body, bool more) override;
    bool flush() override;
    PipeState state() const override { return state_; }

   private:
    friend class TcpConnection;
    struct Range {
      std::size_t begin = 0, end = 0;
      std::size_t size() const { return end - begin; }
    };
    std::size_t staged() const { return first_.size() + second_.size(); }
    std::span<std::byte> room(std::size_t want);
    void stage(std::span<const std::byte> bytes);
    // Sends staged bytes, then head, then body; returns how many bytes of the last two went.
    std::size_t push(std::span<const std::byte> head, std::span<const std::byte> body, bool more);
    std::size_t unstage(std::size_t bytes);
    void fail(int error);

    TcpConnection& connection_;
    std::unique_ptr<Buffer> buffer_;
    Range first_, second_;
    Range* reserved_ = &first_;  // where the last room() lies
    bool corked_ = false;  // the kernel may hold back the last bytes, waiting for more
    int error_ = 0;
    PipeState state_ = PipeState::open;
  };

  // Received bytes that nobody has taken yet: bytes [begin_, end_) of the buffer.
  class Receiver final : public RecvPipe {
   public:
    explicit Receiver(TcpConnection& connection);
    std::span<const std::byte> peek(std::size_t want, std::size_t at_least) override;
    void consume(std::size_t bytes) override;
    std::size_t read(std::span<std::byte> out) override;
    PipeState state() const override;

   private:
    friend class TcpConnection;
    void fill(std::size_t want);
    std::size_t receive(std::byte* out, std::size_t bytes);

    TcpConnection& connection_;
    std::unique_ptr<Buffer> buffer_;
    std::size_t begin_ = 0, end_ = 0;
    bool ended_ = false;
    bool truncated_ = false;  // ended with fewer bytes than somebody needed at least
    int error_ = 0;
  };

  Fd fd_;
  const int peer_;
  const int index_;
  std::string description_;
  Readiness readiness_;
  Poller* poller_ = nullptr;
  Sender sender_;
  Receiver receiver_;
};

// The published address of a rank, as decoded from the blob.
struct TcpAddress {
  struct Entry {
    IpAddress ip;
    int prefix = 0;
  };
  std::array<std::uint8_t, 16> stack{};  // network_stack_id()
  std::array<std::uint8_t, 16> salt{};   // random: no two listeners have equal addresses
  std::uint8_t version = kWireVersion, oldest_version = kOldestWireVersion;
  std::uint16_t port = 0;
  std::uint16_t connections = 1;
  std::vector<Entry> entries;

  std::vector<std::byte> encode() const;
  // Throws ConfigError on bytes that are no such address.
  static TcpAddress decode(std::span<const std::byte> bytes);
  std::string text() const;  // "10.0.0.1, fd00::1 port 5000"
};

// The listening socket of one rank in one group. Throws ConfigError on a wrong interface list or range of ports,
// TransportUnavailableError where no port is free or no address is left.
class TcpListener {
 public:
  explicit TcpListener(const TcpOptions& options);
  // To be given to all ranks. Loopback addresses are in it, for the ranks of this network namespace.
  std::vector<std::byte> address() const { return address_.encode(); }
  std::uint16_t port() const { return address_.port; }
  int fd() const { return fd_.get(); }
  const TcpOptions& options() const { return options_; }
  const std::vector<LocalAddress>& locals() const { return locals_; }
  const TcpAddress& decoded() const { return address_; }

 private:
  TcpOptions options_;
  std::vector<LocalAddress> locals_;
  TcpAddress address_;
  Fd fd_;
};

// One way to reach a peer.
struct TcpCandidate {
  Endpoint remote;
  bool has_source = false;
  IpAddress source{};  // to be bound, where the user chose interfaces or both ends share a network
};

// The ways to reach `all[peer]` from here, best first: loopback in the same network stack, a shared network, other
// addresses, link-local ones. `unused` receives a reason for each published address that is none of them.
std::vector<TcpCandidate> tcp_candidates(const std::vector<LocalAddress>& locals, const TcpOptions& options,
                                         const TcpAddress& own, const std::vector<TcpAddress>& all, int peer,
                                         std::vector<std::string>& unused);

struct TcpMember {
  int rank = 0;
  JobId job{};
  std::uint32_t communicator = 0;
  std::uint32_t epoch = 0;
};

// The same for all who know the same addresses in the same order, and for nobody else, as each has a random part.
JobId job_id_of(std::span<const std::vector<std::byte>> addresses);

struct TcpMesh {
  // Ordered as `peers`, then by index.
  std::vector<std::unique_ptr<TcpConnection>> connections;
  int num_strangers = 0;     // connections that were dropped: no handshake, or a wrong one
  std::string last_stranger; // who and why
};

// Connects this rank with `peers`: the lower rank of a pair connects, the higher accepts. `addresses[r]` is what rank
// r's listener published; it may be empty for ranks that are no peers. All peers must list each other.
// Throws CollectiveTimeoutError, naming the peers that are missing and what happened at each of their addresses, where
// `timeout` is over first; TransportUnavailableError or ConfigError at once where a peer can never be reached.
// `check`, if given, is called about ten times a second and may throw, to end the waiting.
TcpMesh connect_tcp(const TcpListener& listener, const TcpMember& member,
                    std::span<const std::vector<std::byte>> addresses, std::span<const int> peers,
                    std::chrono::nanoseconds timeout, const std::function<void()>& check = {});

}  // namespace hccl_py
