// SPDX-License-Identifier: Apache-2.0
// Transport `loopback`: the ranks are threads of one process. It is the reference the others are compared with, so it
// is written to be obviously right: a mutex and a byte queue per pipe. Not for speed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hccl_py/bells.hpp"
#include "hccl_py/board.hpp"
#include "hccl_py/pipe.hpp"

namespace hccl_py {

// Where the ranks of one loopback group meet; made first, shared by all.
class Hub : public std::enable_shared_from_this<Hub> {
 public:
  explicit Hub(std::uint32_t world, std::uint32_t slot_bytes = 4096, std::uint32_t channels = 3);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  std::uint32_t world() const { return world_; }
  const Board& board() const { return board_; }
  const Bells& bells() const { return bells_; }
  // By which `rank` is woken while it sleeps in poll().
  BellSocket& bell(std::uint32_t rank) { return *sockets_[rank]; }
  SendPipe& send_pipe(std::uint32_t from, std::uint32_t to, std::uint32_t channel);
  RecvPipe& recv_pipe(std::uint32_t from, std::uint32_t to, std::uint32_t channel);
  std::uint32_t channels() const { return channels_; }

 private:
  class Queue;
  class Sender;
  class Receiver;
  std::size_t index(std::uint32_t from, std::uint32_t to, std::uint32_t channel) const;

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::uint32_t world_;
  std::uint32_t channels_;
  std::unique_ptr<Line[]> memory_;
  Board board_;
  std::vector<std::unique_ptr<BellSocket>> sockets_;
  Bells bells_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
};

}  // namespace hccl_py
