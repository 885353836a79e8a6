// SPDX-License-Identifier: Apache-2.0
// Shared segments: memory of one rank that the other ranks of its host can map, so that large messages need not pass
// through a ring. Each is a memfd of its own; its owner hands the descriptor out once, by a datagram, and its peers map
// it when they first meet it. The first page holds a flag with which the owner says that it is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hccl_py/mapping.hpp"
#include "hccl_py/socket.hpp"

namespace hccl_py {

// Memory that this process owns and others may map.
class Segment {
 public:
  static constexpr std::size_t kPage = 4096;

  // New memory, zeroed, reserved: throws ConfigError where there is not enough.
  static std::shared_ptr<Segment> allocate(std::size_t bytes);
  // Puts shared pages in the place of the private ones that hold `bytes` from `memory` on, with the same contents; what
  // else lies on the first and the last page moves along. Nobody may write there meanwhile. The end of the segment puts
  // private pages back. Throws ConfigError if the memory is not private and anonymous.
  static std::shared_ptr<Segment> adopt(std::byte* memory, std::size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }  // whole pages
  int fd() const { return fd_.get(); }
  bool holds(const std::byte* memory, std::size_t bytes) const {
    return memory >= data_ && bytes <= bytes_ && static_cast<std::size_t>(memory - data_) <= bytes_ - bytes;
  }

 private:
  Segment(std::size_t bytes, std::byte* adopted);

  Fd fd_;
  Mapping head_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool adopted_ = false;
};

// Where a buffer lies in shared memory: at `offset` of its owner's segment number `segment`. 0: it is private.
struct SharedPlace {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};

// The segments that one rank shares with a group. Any thread adds; the driver finds.
class OwnSegments {
 public:
  struct Entry {
    std::uint32_t number;
    std::weak_ptr<Segment> segment;
    std::byte* data;
    std::size_t bytes;
    bool announced;
  };
  void add(const std::shared_ptr<Segment>& segment);
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  // Where memory..memory+bytes lies, if all peers know the segment; announce(number, fd) tells them, the first time.
  template <class Announce>
  SharedPlace find(const std::byte* memory, std::size_t bytes, Announce announce) {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
      if (memory < entry.data || memory + bytes > entry.data + entry.bytes) continue;
      const std::shared_ptr<Segment> segment = entry.segment.lock();
      if (!segment) continue;
      if (!entry.announced) entry.announced = announce(entry.number, segment->fd());
      if (!entry.announced) return {};
      return {entry.number, static_cast<std::uint64_t>(memory - entry.data)};
    }
    return {};
  }

 private:
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::atomic<std::uint32_t> count_{0};
  std::uint32_t next_number_ = 1;
};

// The segments of the other ranks of the host, as mapped here; and the socket by which their descriptors come.
class PeerSegments {
 public:
  // `name`: of the socket, in the abstract namespace; `nonce`: of the group, for who has it is one of us.
  PeerSegments(const std::string& name, std::uint64_t nonce);

  // Sends a descriptor to the socket called `name`; false if it cannot be taken now.
  bool announce(const std::string& name, std::uint32_t owner, std::uint32_t number, int fd) const;
  // Where the peer's segment begins here, and its size; nullptr if it is unknown or cannot be mapped.
  std::byte* find(std::uint32_t owner, std::uint32_t number, std::size_t& bytes);
  // Lets go of what its owner has freed. Not while anything found here is in use.
  void forget_gone();

 private:
  struct Entry {
    std::uint32_t owner;
    std::uint32_t number;
    Mapping mapping;
    std::size_t bytes;
  };
  void receive();

  Fd socket_;
  std::uint64_t nonce_;
  std::vector<Entry> entries_;
};

}  // namespace hccl_py
