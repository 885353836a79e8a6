// SPDX-License-Identifier: Apache-2.0
// One rank's part of a plan, as the engine runs it: a list of steps, each a fold of sources into targets.
// Written by scheduler/program.py, loaded and bounds-checked here; docs/PLAN_FORMAT.md describes the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hccl_py/types.hpp"

namespace hccl_py {

enum class Where : std::uint8_t { input = 0, output = 1, scratch = 2, peer = 3 };

// On the wire of the plan format: 16 bytes, little endian.
struct Operand {
  Where where;
  std::uint8_t raw;       // sources: a single unscaled contribution; peer targets: may land in the peer's OUTPUT, see `slot`
  std::uint16_t channel;  // peer operands: which of the parallel channels to that peer
  std::uint32_t peer;     // peer operands: the rank
  std::uint32_t slot;     // first slot; for peer sources of a one-round plan the slot of the peer's INPUT; for peer
                          // targets that may land the slot of the peer's OUTPUT; for peer sources of other plans 1
                          // if the message comes only after all that its step would have to wait for
  std::uint32_t span;     // number of slots
};
static_assert(sizeof(Operand) == 16);

// 16 bytes. Sources are operands[first .. first+num_sources), targets follow them.
struct Step {
  std::uint32_t first;
  std::uint16_t num_sources;
  std::uint16_t num_targets;
  std::uint32_t reserved[2];
};
static_assert(sizeof(Step) == 16);

// What a scratch slot is as large as: a slot of INPUT or of OUTPUT. 8 bytes.
struct ScratchSize {
  std::uint32_t where;  // Where::input or Where::output
  std::uint32_t slot;
};
static_assert(sizeof(ScratchSize) == 8);

// 64 bytes at the start; then scratch sizes, steps, operands.
struct ProgramHeader {
  std::uint32_t magic;  // kProgramMagic
  std::uint16_t version;
  std::uint8_t collective;
  std::uint8_t order;  // 0 canonical, 1 free
  std::uint32_t world;
  std::uint32_t rank;
  std::uint32_t root;
  std::uint32_t slots_per_block;  // every block of INPUT and OUTPUT is cut into this many slots
  std::uint32_t input_blocks;     // blocks of this rank's INPUT: 0, 1 or world
  std::uint32_t output_blocks;
  std::uint32_t num_scratch;
  std::uint32_t num_steps;
  std::uint32_t num_operands;
  std::uint32_t num_channels;  // parallel channels to one peer
  std::uint32_t flags;         // bit 0: one-round plan; bits 1-2: Lends; bit 3: shared fold
  std::uint32_t reserved;
  std::uint64_t digest;  // first 8 bytes of the plan's digest, little endian
};
static_assert(sizeof(ProgramHeader) == 64);

constexpr std::uint32_t kProgramMagic = 0x4e4c5048;  // "HPLN"
constexpr std::uint16_t kProgramVersion = 1;
constexpr std::uint32_t kFlagOneRound = 1;
constexpr std::uint32_t kLendsShift = 1, kLendsMask = 3;
constexpr std::uint32_t kFlagSharedFold = 8;
// When messages may stay in the sender's memory until they are taken: where the plan ends also with channels that hold nothing.
enum class Lends : std::uint8_t { never = 0, apart = 1, always = 2 };  // apart: where INPUT and OUTPUT are separate
// At most this many unfinished steps are open at a time, in program order; the verifier assumes the same.
constexpr std::size_t kWindow = 64;

// A dependency of a step on an earlier one of the same rank, through a buffer.
struct Dependency {
  std::uint32_t step;
  bool streamed;  // same slots: element i may follow element i; else the earlier step must be complete
};

// A program that exists has been bounds-checked.
class Program {
 public:
  // Throws PlanError on anything out of bounds.
  static Program load(std::span<const std::byte> bytes);

  const ProgramHeader& header() const { return header_; }
  Collective collective() const { return static_cast<Collective>(header_.collective); }
  bool one_round() const { return (header_.flags & kFlagOneRound) != 0; }
  Lends lends() const { return static_cast<Lends>(header_.flags >> kLendsShift & kLendsMask); }
  // True if it may be run by the board of one host instead, each rank folding its share in canonical order.
  bool shared_fold() const { return (header_.flags & kFlagSharedFold) != 0; }
  std::span<const Step> steps() const { return steps_; }
  std::span<const Operand> sources(const Step& s) const { return {operands_.data() + s.first, s.num_sources}; }
  std::span<const Operand> targets(const Step& s) const {
    return {operands_.data() + s.first + s.num_sources, s.num_targets};
  }
  std::span<const ScratchSize> scratch() const { return scratch_; }
  // Dependencies of step `i`; they differ when INPUT and OUTPUT share memory.
  std::span<const Dependency> dependencies(std::size_t i, bool in_place) const;

 private:
  ProgramHeader header_{};
  std::vector<ScratchSize> scratch_;
  std::vector<Step> steps_;
  std::vector<Operand> operands_;
  std::vector<Dependency> dependencies_[2];
  std::vector<std::uint32_t> first_dependency_[2];

  void derive_dependencies(bool in_place);
};

}  // namespace hccl_py
