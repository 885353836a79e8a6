// SPDX-License-Identifier: Apache-2.0
// One call of a collective, and what can go wrong with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "hccl_py/program.hpp"
#include "hccl_py/types.hpp"
#include "hccl_py/wire.hpp"

namespace hccl_py {

// Counts are elements. `count` is per block; with `input_counts`/`output_counts` blocks are uneven (world entries each).
struct Call {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::uint8;
  std::uint32_t root = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t count = 0;
  const std::uint64_t* input_counts = nullptr;
  const std::uint64_t* output_counts = nullptr;

  bool uneven() const { return input_counts != nullptr || output_counts != nullptr; }
};

// Of `blocks` blocks together; `counts` or nullptr: of uneven ones.
std::uint64_t elements(std::uint32_t blocks, std::uint64_t count, const std::uint64_t* counts);
// The counts of uneven blocks where all ranks know all of them, else nothing: what ranks compare must be the same on all.
std::span<const std::uint64_t> known_counts(const Call& call, std::uint32_t world);
// What all ranks must say alike; the sequence number is left open.
Fingerprint fingerprint_of(const ProgramHeader& header, const Call& call);

enum class FailureKind : std::uint32_t { none, timeout, peer_lost, desync, transport, aborted, truncated, internal };

// True if both describe the same call; the call site may differ.
inline bool same_contract(const Fingerprint& a, const Fingerprint& b) {
  if constexpr (!kCheckContract) return a.sequence == b.sequence;
  return a.sequence == b.sequence && a.collective == b.collective && a.op == b.op && a.dtype == b.dtype &&
         a.flags == b.flags && a.root == b.root && a.count == b.count && a.plan_digest == b.plan_digest;
}

// Made on the way out only, so it may allocate.
struct Failure {
  FailureKind kind = FailureKind::none;
  int culprit = -1;  // the rank to blame, if known
  int step = -1;
  std::uint64_t sequence = 0;
  double waited_s = 0;
  Fingerprint theirs{};  // desync: what the culprit runs
  std::string text;

  explicit operator bool() const { return kind != FailureKind::none; }
};

// A block of `count` elements is cut in `slots` slots; slot k begins at element slot_begin(count, slots, k).
// scheduler/slots.py computes the same.
inline std::uint64_t slot_length(std::uint64_t count, std::uint32_t slots) {
  const std::uint64_t even = (count + slots - 1) / slots;
  return count >= std::uint64_t{64} * slots ? (even + 15) / 16 * 16 : even;
}
inline std::uint64_t slot_begin(std::uint64_t count, std::uint32_t slots, std::uint32_t k) {
  return std::min(count, k * slot_length(count, slots));
}

}  // namespace hccl_py
