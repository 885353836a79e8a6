// SPDX-License-Identifier: Apache-2.0
// The board of one host: memory that all its ranks share. Each rank has a line where it says which collective it has
// entered (the contract check), two slots for small payloads, a doorbell, and there is one place for bad news.
// Plain memory: over shm it lies in a memfd, over loopback on the heap.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hccl_py/wire.hpp"

namespace hccl_py {

enum class Sleeping : std::uint32_t { awake = 0, on_futex = 1, on_socket = 2 };

// Of a line, the first half says what the rank has entered; the other is free for a payload so small that it fits.
constexpr std::size_t kContractBytes = offsetof(Fingerprint, site);
constexpr std::size_t kLinePayloadBytes = sizeof(Fingerprint) - kContractBytes;

struct alignas(64) BoardRank {
  // By parity of the sequence number. `sequence` is written last, with release. Two lines are enough: a rank writes
  // sequence s+2 only after all have entered s+1, so after all have read s (also where s+1 failed: Group::follow).
  Fingerprint line[2];
  // Rounds of the slots, see SharedFold: into how many this rank has put its part, and in how many folded its share.
  alignas(64) std::atomic<std::uint64_t> published;
  std::atomic<std::uint64_t> folded;
  alignas(64) std::atomic<std::uint32_t> sleeping;  // Sleeping
  std::atomic<std::uint32_t> bell;                  // futex word
  alignas(64) std::atomic<std::uint32_t> closed;    // 1 once the rank has left
  std::atomic<std::uint32_t> locked;                // 1: it holds a lock that tells whether it lives, see ShmHost
  std::atomic<std::uint32_t> core;                  // on which it waited last, + 1; 0: not known, see Placement
  std::uint32_t pid;
  std::int32_t rank;
  std::uint64_t probe_at;  // where in its private memory the rank keeps `probe`: peers try to read it there
  std::uint64_t probe;
  // Where the rank called a collective, for DesyncError; by parity, as the lines.
  struct alignas(64) Site {
    std::atomic<std::uint64_t> sequence;  // 0: none
    char text[248];
  } site[2];

  std::byte* line_payload(std::uint64_t sequence) { return reinterpret_cast<std::byte*>(&line[sequence & 1]) + kContractBytes; }
  // All but the sequence number, by which the line is published.
  void write_contract(const Fingerprint& contract, std::uint64_t sequence) {
    if constexpr (!kCheckContract) return;
    constexpr std::size_t first = sizeof contract.sequence;
    std::memcpy(reinterpret_cast<std::byte*>(&line[sequence & 1]) + first, reinterpret_cast<const std::byte*>(&contract) + first,
                kContractBytes - first);
  }
};
static_assert(sizeof(Fingerprint) == 64 && kLinePayloadBytes == 32);

// The number of the last collective that the rank has entered; 0: none.
inline std::uint64_t last_entered(BoardRank& rank) {
  return std::max(std::atomic_ref(rank.line[0].sequence).load(std::memory_order_acquire),
                  std::atomic_ref(rank.line[1].sequence).load(std::memory_order_acquire));
}

// Bad news for everybody on this host; the first to write it wins.
struct alignas(64) BadNews {
  std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 there
  std::uint32_t kind;                // FailureKind
  std::int32_t culprit;
  std::int32_t reporter;
  std::uint64_t sequence;
  char text[232];
};

constexpr std::uint64_t kBoardMagic = 0x3164726f61426368;

struct alignas(64) BoardHeader {
  std::atomic<std::uint64_t> magic;  // kBoardMagic once the memory is ready
  std::uint64_t nonce;
  std::uint32_t num_ranks;
  std::uint32_t slot_bytes;  // capacity of one payload slot
  BadNews bad_news;
};

// A view of the board's memory by local index (the order of ranks on this host).
class Board {
 public:
  Board() = default;
  Board(std::byte* memory, std::uint32_t num_ranks, std::uint32_t slot_bytes)
      : memory_(memory), num_ranks_(num_ranks), slot_bytes_(slot_bytes) {}

  static std::size_t bytes(std::uint32_t num_ranks, std::uint32_t slot_bytes) {
    return sizeof(BoardHeader) + num_ranks * (sizeof(BoardRank) + 2 * std::size_t{slot_bytes});
  }

  explicit operator bool() const { return memory_ != nullptr; }
  BoardHeader& header() const { return *reinterpret_cast<BoardHeader*>(memory_); }
  BoardRank& rank(std::uint32_t local) const {
    return reinterpret_cast<BoardRank*>(memory_ + sizeof(BoardHeader))[local];
  }
  // By parity of the round: a rank writes its slot in round r+2 only after all have written theirs in round r+1, so after
  // all are through with round r.
  std::byte* slot(std::uint32_t local, std::uint64_t round) const {
    return memory_ + sizeof(BoardHeader) + num_ranks_ * sizeof(BoardRank) +
           (2 * std::size_t{local} + (round & 1)) * slot_bytes_;
  }
  std::uint32_t num_ranks() const { return num_ranks_; }
  std::uint32_t slot_bytes() const { return slot_bytes_; }

 private:
  std::byte* memory_ = nullptr;
  std::uint32_t num_ranks_ = 0;
  std::uint32_t slot_bytes_ = 0;
};

}  // namespace hccl_py
