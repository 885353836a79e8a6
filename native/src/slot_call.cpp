// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/slot_call.hpp"

#include <algorithm>
#include <cstring>

namespace hccl_py {
namespace {

// The largest INPUT of any rank, in bytes: a scatter's root has one block per rank, the others none.
std::uint64_t largest_payload(const ProgramHeader& h, const Call& call) {
  const std::uint32_t blocks = call.collective == Collective::scatter ? h.world : std::max(h.input_blocks, 1u);
  return blocks * call.count * size_of(call.dtype);
}

void copy(std::byte* out, const std::byte* in, std::uint64_t bytes) {
  if (bytes == 4)
    std::memcpy(out, in, 4);
  else if (bytes == 8)
    std::memcpy(out, in, 8);
  else if (bytes != 0 && in != out)
    std::memcpy(out, in, bytes);
}

}  // namespace

bool SlotCall::fits(const Program& program, const Call& call, std::uint32_t slot_bytes) {
  return program.one_round() && !call.uneven() && largest_payload(program.header(), call) <= slot_bytes;
}

SlotCall::SlotCall(const Program& program, const Call& call, const std::vector<int>& local_index)
    : program_(&program), count_(call.count), dtype_(call.dtype), op_(call.op), contract_(fingerprint_of(program.header(), call)) {
  const ProgramHeader& h = program.header();
  element_bytes_ = size_of(call.dtype);
  payload_bytes_ = h.input_blocks * call.count * element_bytes_;
  in_line_ = largest_payload(h, call) <= kLinePayloadBytes;
  scale_ = 1.0 / h.world;
  if (reduces(call.collective)) fold_ = fold_kernel(call.op, call.dtype, best_isa());
  const std::uint32_t slots = h.slots_per_block;
  const auto offset = [&](std::uint32_t slot) {
    return (slot / slots * call.count + slot_begin(call.count, slots, slot % slots)) * element_bytes_;
  };
  std::size_t widest = 1;
  for (const Step& step : program.steps()) {
    const auto targets = program.targets(step);
    const auto target = std::find_if(targets.begin(), targets.end(), [](const Operand& o) { return o.where == Where::output; });
    if (target == targets.end()) continue;  // a send: the payload is on the board already
    Move move;
    move.offset = offset(target->slot);
    move.bytes = offset(target->slot + target->span) - move.offset;
    move.first = static_cast<std::uint32_t>(sources_.size());
    move.num_sources = step.num_sources;
    for (const Operand& o : program.sources(step)) {
      const std::int32_t local = o.where == Where::input    ? Source::kInput
                                 : o.where == Where::output ? Source::kOutput
                                                            : local_index[o.peer];
      sources_.push_back({local, offset(o.slot), o.raw != 0});
    }
    widest = std::max<std::size_t>(widest, step.num_sources);
    moves_.push_back(move);
  }
  fold_sources_.resize(widest);
}

void SlotCall::publish(const Call& call, const Board& board, std::uint32_t local, std::uint64_t sequence, std::uint64_t round) const {
  copy(payload(board, local, sequence, round), call.input, payload_bytes_);
  board.rank(local).write_contract(contract_, sequence);
}

void SlotCall::fold(const Call& call, const Board& board, std::uint64_t sequence, std::uint64_t round) {
  const auto memory = [&](const Source& source) {
    const std::byte* base = source.local >= 0                  ? payload(board, static_cast<std::uint32_t>(source.local), sequence, round)
                            : source.local == Source::kInput ? call.input
                                                             : call.output;
    return base + source.offset;
  };
  for (const Move& move : moves_) {
    const Source* sources = sources_.data() + move.first;
    std::byte* out = call.output + move.offset;
    if (move.num_sources == 1) {
      copy(out, memory(*sources), move.bytes);
      continue;
    }
    for (std::uint32_t k = 0; k < move.num_sources; ++k) fold_sources_[k] = {memory(sources[k]), sources[k].raw};
    fold_(out, fold_sources_.data(), move.num_sources, move.bytes / element_bytes_, scale_);
  }
}

}  // namespace hccl_py
