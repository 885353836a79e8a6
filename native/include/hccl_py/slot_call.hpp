// SPDX-License-Identifier: Apache-2.0
// A small collective by the board of one host, worked out once for a program, a size, a type and an operator: what to
// publish and what to fold from where. Addresses come with each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hccl_py/board.hpp"
#include "hccl_py/call.hpp"
#include "hccl_py/program.hpp"
#include "hccl_py/reduce.hpp"

namespace hccl_py {

class SlotCall {
 public:
  // True if the call of this one-round program may go by slots of `slot_bytes`; the same on all ranks that make the same call.
  static bool fits(const Program& program, const Call& call, std::uint32_t slot_bytes);

  // `local_index`: by rank, its index on the board.
  SlotCall(const Program& program, const Call& call, const std::vector<int>& local_index);

  bool is_of(const Program& program, const Call& call) const {
    return program_ == &program && count_ == call.count && dtype_ == call.dtype && op_ == call.op;
  }
  // What all ranks must agree on; the sequence number is left open.
  const Fingerprint& contract() const { return contract_; }
  // Puts this rank's contribution on the board; the line's sequence number is for the caller to write.
  void publish(const Call& call, const Board& board, std::uint32_t local, std::uint64_t sequence, std::uint64_t round) const;
  // Once all have published: makes OUTPUT.
  void fold(const Call& call, const Board& board, std::uint64_t sequence, std::uint64_t round);
  // How many rounds of the slots it takes: none if all payloads lie in the lines.
  std::uint64_t rounds() const { return in_line_ ? 0 : 1; }

 private:
  // Bytes of a peer's contribution (local >= 0), of INPUT or of OUTPUT.
  struct Source {
    static constexpr std::int32_t kInput = -1, kOutput = -2;
    std::int32_t local;
    std::uint64_t offset;
    bool raw;
  };
  struct Move {
    std::uint64_t offset;  // in OUTPUT
    std::uint64_t bytes;
    std::uint32_t first, num_sources;
  };

  std::byte* payload(const Board& board, std::uint32_t local, std::uint64_t sequence, std::uint64_t round) const {
    return in_line_ ? board.rank(local).line_payload(sequence) : board.slot(local, round);
  }

  const Program* program_;
  std::uint64_t count_;
  DType dtype_;
  ReduceOp op_;
  Fingerprint contract_{};
  std::uint64_t payload_bytes_;  // of this rank
  bool in_line_;                 // payloads lie in the lines themselves
  std::size_t element_bytes_;
  FoldFn fold_ = nullptr;
  double scale_;
  std::vector<Move> moves_;
  std::vector<Source> sources_;
  std::vector<FoldSource> fold_sources_;
};

}  // namespace hccl_py
