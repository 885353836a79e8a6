// SPDX-License-Identifier: Apache-2.0
// Transport `shm`: the ranks of one host share one memfd. It holds the board and, for every ordered pair of ranks and
// channel, a ring of bytes. Each ring's data is mapped twice in a row, so that every span is contiguous.
// A memfd needs no room in /dev/shm and has no name: nothing is left behind when a rank is killed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hccl_py/bells.hpp"
#include "hccl_py/board.hpp"
#include "hccl_py/mapping.hpp"
#include "hccl_py/pipe.hpp"
#include "hccl_py/segments.hpp"
#include "hccl_py/socket.hpp"

namespace hccl_py {

struct ShmOptions {
  std::uint32_t ring_bytes = 512 * 1024;  // per ordered pair and channel; a power of two, at least a page
  std::uint32_t slot_bytes = 64 * 1024;   // payload slot per rank (there are two of each)
  std::uint32_t channels = 2;             // rings per ordered pair
  std::uint32_t piece_bytes = 256 * 1024;  // in which private memory of a peer is read
  // From which size on messages are taken from the sender's memory; 0: never.
  std::uint64_t shared_from_bytes = 8 * 1024;     // where it is shared
  std::uint64_t private_from_bytes = 32 * 1024;  // where it is private
};

// A rank's door for the ranks of its host, opened before it knows them: a listening socket that hands out the memfd.
class ShmDoor {
 public:
  ShmDoor();
  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
  std::string name_;
};

// One rank's mapping of its host's shared memory.
class ShmHost {
 public:
  // `doors[i]`, `bells[i]`, `ranks[i]` belong to the host's i-th rank; the first makes the memory, the others fetch it.
  // Throws TransportUnavailableError if that fails, CollectiveTimeoutError after the deadline.
  ShmHost(const ShmDoor& door, const BellSocket& bell, const std::vector<std::string>& doors,
          const std::vector<std::string>& bells, const std::vector<std::int32_t>& ranks, std::uint32_t local,
          std::uint64_t nonce, const ShmOptions& options, std::int64_t deadline_ns);
  ~ShmHost();
  ShmHost(const ShmHost&) = delete;
  ShmHost& operator=(const ShmHost&) = delete;

  const Board& board() const { return board_; }
  const Bells& bells() const { return bells_; }
  SendPipe& send_pipe(std::uint32_t to, std::uint32_t channel);
  RecvPipe& recv_pipe(std::uint32_t from, std::uint32_t channel);
  // False once the process behind `local` is gone. A system call: not for hot loops.
  bool alive(std::uint32_t local) const;

  // Finds out whether the private memory of the peers can be read, and tells them. After all have been constructed.
  // Returns why not; empty if it can.
  std::string probe_peers();
  // Tells all peers of a segment of ours; false if one cannot take the news now.
  bool announce(std::uint32_t number, int fd) const;
  PeerSegments& segments() { return *segments_; }

 private:
  class Ring;
  void make_memory(const ShmDoor& door, std::size_t bytes, std::uint64_t nonce, std::int64_t deadline_ns);
  void fetch_memory(const std::string& door, std::size_t bytes, std::uint64_t nonce, std::int64_t deadline_ns);
  void map_board();
  void hold_lock();
  Ring& ring(std::size_t i, std::uint32_t other);
  std::size_t ring_index(std::uint32_t from, std::uint32_t to, std::uint32_t channel) const;

  ShmOptions options_;
  std::uint32_t num_ranks_;
  std::uint32_t local_;
  Fd fd_;       // the memfd, as handed out
  Fd lock_fd_;  // an open description of our own: holds the lock that says we live
  Mapping memory_;  // board and ring controls
  std::size_t mapped_bytes_ = 0;
  std::size_t controls_offset_ = 0;
  std::size_t data_offset_ = 0;
  Board board_;
  Bells bells_;
  std::unique_ptr<PeerSegments> segments_;
  std::vector<std::string> mailboxes_;
  std::uint64_t probe_ = 0;
  std::vector<std::unique_ptr<Ring>> rings_;
};

}  // namespace hccl_py
