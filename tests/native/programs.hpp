// SPDX-License-Identifier: Apache-2.0
// Programs written by hand: a builder for the bytes that the engine loads, and the few plans that the tests run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hccl_py/program.hpp"

namespace hccl_py::testing {

inline Operand in(std::uint32_t slot, std::uint32_t span = 1) { return {Where::input, 1, 0, 0, slot, span}; }
inline Operand out(std::uint32_t slot, std::uint32_t span = 1) { return {Where::output, 0, 0, 0, slot, span}; }
inline Operand scratch(std::uint32_t slot, std::uint32_t span = 1) { return {Where::scratch, 0, 0, 0, slot, span}; }
// `slot`: in a one-round plan that of the peer's INPUT.
inline Operand peer(std::uint32_t rank, std::uint16_t channel = 0, std::uint32_t slot = 0) {
  return {Where::peer, 0, channel, rank, slot, 1};
}
inline Operand raw(Operand o) {
  o.raw = 1;
  return o;
}

// Blocks of INPUT and OUTPUT, as the Collective docstring has them.
inline std::uint32_t input_blocks(Collective c, std::uint32_t world, std::uint32_t root, std::uint32_t rank) {
  switch (c) {
    case Collective::reduce_scatter:
    case Collective::all_to_all: return world;
    case Collective::scatter: return rank == root ? world : 0;
    case Collective::broadcast: return rank == root ? 1 : 0;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::barrier: return 1;
  }
  return 0;
}
inline std::uint32_t output_blocks(Collective c, std::uint32_t world, std::uint32_t root, std::uint32_t rank) {
  switch (c) {
    case Collective::all_gather:
    case Collective::all_to_all: return world;
    case Collective::gather: return rank == root ? world : 0;
    case Collective::reduce: return rank == root ? 1 : 0;
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce_scatter:
    case Collective::scatter:
    case Collective::barrier: return 1;
  }
  return 0;
}

class Writer {
 public:
  Writer(Collective collective, std::uint32_t world, std::uint32_t rank, std::uint32_t root = 0, std::uint32_t slots = 1) {
    header.magic = kProgramMagic;
    header.version = kProgramVersion;
    header.collective = static_cast<std::uint8_t>(collective);
    header.world = world;
    header.rank = rank;
    header.root = root;
    header.slots_per_block = slots;
    header.input_blocks = input_blocks(collective, world, root, rank);
    header.output_blocks = output_blocks(collective, world, root, rank);
    header.num_channels = 2;
    header.digest = 0x1234;
  }
  Writer& one_round() {
    header.flags |= kFlagOneRound;
    return *this;
  }
  Writer& add_scratch(Where like, std::uint32_t slot) {
    scratches.push_back({static_cast<std::uint32_t>(like), slot});
    return *this;
  }
  Writer& step(const std::vector<Operand>& sources, const std::vector<Operand>& targets) {
    steps.push_back({static_cast<std::uint32_t>(operands.size()), static_cast<std::uint16_t>(sources.size()),
                     static_cast<std::uint16_t>(targets.size()), {0, 0}});
    operands.insert(operands.end(), sources.begin(), sources.end());
    operands.insert(operands.end(), targets.begin(), targets.end());
    return *this;
  }
  std::vector<std::byte> bytes() const {
    ProgramHeader h = header;
    h.num_scratch = static_cast<std::uint32_t>(scratches.size());
    h.num_steps = static_cast<std::uint32_t>(steps.size());
    h.num_operands = static_cast<std::uint32_t>(operands.size());
    std::vector<std::byte> all;
    append(all, &h, 1);
    append(all, scratches.data(), scratches.size());
    append(all, steps.data(), steps.size());
    append(all, operands.data(), operands.size());
    return all;
  }
  Program program() const { return Program::load(bytes()); }

  ProgramHeader header{};
  std::vector<ScratchSize> scratches;
  std::vector<Step> steps;
  std::vector<Operand> operands;

 private:
  template <class T>
  static void append(std::vector<std::byte>& all, const T* items, std::size_t count) {
    const auto* p = reinterpret_cast<const std::byte*>(items);
    all.insert(all.end(), p, p + count * sizeof(T));
  }
};

// Every rank sends its INPUT to all others and folds what comes in the order of ranks.
inline Writer direct_all_reduce(std::uint32_t world, std::uint32_t rank, bool one_round = false) {
  Writer w(Collective::all_reduce, world, rank);
  if (one_round) w.one_round();
  std::vector<Operand> sources, targets;
  for (std::uint32_t r = 0; r < world; ++r) {
    sources.push_back(r == rank ? in(0) : raw(peer(r)));
    if (r != rank) targets.push_back(peer(r));
  }
  if (!targets.empty()) w.step({in(0)}, targets);
  return w.step(sources, {out(0)});
}

// Ring: reduce-scatter, then all-gather, over `world` slots.
inline Writer ring_all_reduce(std::uint32_t world, std::uint32_t rank) {
  Writer w(Collective::all_reduce, world, rank, 0, world);
  const std::uint32_t next = (rank + 1) % world, before = (rank + world - 1) % world;
  const auto slot = [&](std::uint32_t back) { return (rank + 2 * world - back) % world; };
  w.step({in(slot(0))}, {peer(next)});
  for (std::uint32_t k = 1; k < world; ++k) {
    Operand from = peer(before);
    from.raw = k == 1;
    w.step({from, in(slot(k))}, {out(slot(k)), peer(next)});
  }
  for (std::uint32_t k = 0; k + 1 < world; ++k) {
    std::vector<Operand> targets{out(slot(k))};
    if (k + 2 < world) targets.push_back(peer(next));
    w.step({peer(before)}, targets);
  }
  return w;
}

// Every rank folds one slot for all.
inline Writer two_round_all_reduce(std::uint32_t world, std::uint32_t rank) {
  Writer w(Collective::all_reduce, world, rank, 0, world);
  std::vector<Operand> sources, targets{out(rank)};
  for (std::uint32_t r = 0; r < world; ++r) {
    sources.push_back(r == rank ? in(rank) : raw(peer(r)));
    if (r == rank) continue;
    w.step({in(r)}, {peer(r)});
    Operand there = peer(r, 1);
    there.raw = 1;
    there.slot = rank;
    targets.push_back(there);
  }
  w.step(sources, targets);
  for (std::uint32_t r = 0; r < world; ++r) {
    if (r == rank) continue;
    Operand here = peer(r, 1);
    here.slot = 1;
    w.step({here}, {out(r)});
  }
  return w;
}

// The root sends to each other rank.
inline Writer flat_broadcast(std::uint32_t world, std::uint32_t rank, std::uint32_t root = 0, bool one_round = false) {
  Writer w(Collective::broadcast, world, rank, root);
  if (one_round) w.one_round();
  if (rank != root) return w.step({raw(peer(root))}, {out(0)});
  std::vector<Operand> targets{out(0)};
  for (std::uint32_t r = 0; r < world; ++r)
    if (r != root) targets.push_back(peer(r));
  return w.step({in(0)}, targets);
}

inline Writer direct_all_gather(std::uint32_t world, std::uint32_t rank, bool one_round = false) {
  Writer w(Collective::all_gather, world, rank);
  if (one_round) w.one_round();
  std::vector<Operand> targets{out(rank)};
  for (std::uint32_t r = 0; r < world; ++r)
    if (r != rank) targets.push_back(peer(r));
  w.step({in(0)}, targets);
  for (std::uint32_t r = 0; r < world; ++r)
    if (r != rank) w.step({raw(peer(r))}, {out(r)});
  return w;
}

inline Writer direct_all_to_all(std::uint32_t world, std::uint32_t rank) {
  Writer w(Collective::all_to_all, world, rank);
  w.step({in(rank)}, {out(rank)});
  for (std::uint32_t r = 0; r < world; ++r)
    if (r != rank) w.step({in(r)}, {peer(r)});
  for (std::uint32_t r = 0; r < world; ++r)
    if (r != rank) w.step({raw(peer(r))}, {out(r)});
  return w;
}

// All tell rank 0, rank 0 tells all.
inline Writer flat_barrier(std::uint32_t world, std::uint32_t rank) {
  Writer w(Collective::barrier, world, rank);
  if (rank != 0) return w.step({in(0)}, {peer(0)}).step({peer(0)}, {out(0)});
  for (std::uint32_t r = 1; r < world; ++r) w.step({peer(r)}, {out(0)});
  for (std::uint32_t r = 1; r < world; ++r) w.step({out(0)}, {peer(r)});
  return w;
}

}  // namespace hccl_py::testing
