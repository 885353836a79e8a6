// SPDX-License-Identifier: Apache-2.0
// Waking a rank of the same host that went to sleep. A rank that sleeps says so on the board; whoever gives it
// something to do (bytes, room, an arrival) then wakes it, through a futex or through a datagram socket.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hccl_py/board.hpp"
#include "hccl_py/futex.hpp"
#include "hccl_py/socket.hpp"

namespace hccl_py {

// The socket by which a rank is woken while it sleeps in epoll. Its name lives in the abstract namespace.
class BellSocket {
 public:
  BellSocket();

  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  // Forgets the rings so far.
  void drain();
  // Rings the socket called `name`; a lost ring is harmless, sleepers look around at least every 100 ms.
  void ring(const std::string& name) const;

 private:
  Fd fd_;
  std::string name_;
};

class Bells {
 public:
  Bells() = default;
  Bells(Board board, const BellSocket* socket, std::vector<std::string> names)
      : board_(board), socket_(socket), names_(std::move(names)) {}

  // After publishing something for `local`: wakes it if it sleeps.
  void ring(std::uint32_t local) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (board_.rank(local).sleeping.load(std::memory_order_relaxed) != 0) wake(local);
  }
  // The same for all but `local`, who published it.
  void ring_others(std::uint32_t local) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (std::uint32_t i = 0; i < board_.num_ranks(); ++i)
      if (i != local && board_.rank(i).sleeping.load(std::memory_order_relaxed) != 0) wake(i);
  }
  void ring_all() const {
    for (std::uint32_t i = 0; i < board_.num_ranks(); ++i) ring(i);
  }

 private:
  void wake(std::uint32_t local) const;

  Board board_;
  const BellSocket* socket_ = nullptr;
  std::vector<std::string> names_;
};

// 16 hexadecimal digits that nobody can guess.
std::string random_name();
std::uint64_t random_u64();
// Fills in the address of a socket in Linux's abstract namespace: it needs no file and vanishes with its owner.
socklen_t abstract_address(const std::string& name, sockaddr_un& address);

}  // namespace hccl_py
