// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/program.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "hccl_py/error.hpp"

namespace hccl_py {
namespace {

// Hands out the bytes of a program in order; refuses to read past the end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  void take(T* out, std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > rest_.size()) throw PlanError("program is cut off: a table does not fit in its bytes");
    if (bytes != 0) std::memcpy(out, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

[[noreturn]] void reject(std::size_t step, const std::string& why) {
  throw PlanError("program step " + std::to_string(step) + ": " + why);
}

std::uint64_t slots_of(const ProgramHeader& h, Where where) {
  switch (where) {
    case Where::input: return std::uint64_t{h.input_blocks} * h.slots_per_block;
    case Where::output: return std::uint64_t{h.output_blocks} * h.slots_per_block;
    case Where::scratch: return h.num_scratch;
    case Where::peer: return 0;
  }
  return 0;
}

// Blocks of INPUT of one rank, as the Collective docstring has them.
std::uint32_t input_blocks(const ProgramHeader& h, std::uint32_t rank) {
  switch (static_cast<Collective>(h.collective)) {
    case Collective::reduce_scatter:
    case Collective::all_to_all: return h.world;
    case Collective::scatter: return rank == h.root ? h.world : 0;
    case Collective::broadcast: return rank == h.root ? 1 : 0;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::barrier: return 1;
  }
  return 0;
}

std::uint32_t output_blocks(const ProgramHeader& h, std::uint32_t rank) {
  switch (static_cast<Collective>(h.collective)) {
    case Collective::all_gather:
    case Collective::all_to_all: return h.world;
    case Collective::gather: return rank == h.root ? h.world : 0;
    case Collective::reduce: return rank == h.root ? 1 : 0;
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce_scatter:
    case Collective::scatter:
    case Collective::barrier: return 1;
  }
  return 0;
}

void check_header(const ProgramHeader& h) {
  if (h.magic != kProgramMagic) throw PlanError("not a program: wrong magic number");
  if (h.version != kProgramVersion)
    throw PlanError("program has format version " + std::to_string(h.version) + ", this engine reads version " +
                    std::to_string(kProgramVersion));
  if (h.collective >= kNumCollectives) throw PlanError("program names an unknown collective");
  if (h.world == 0 || h.rank >= h.world || h.root >= h.world) throw PlanError("program names a rank outside its world");
  if (h.slots_per_block == 0 || h.slots_per_block > (1u << 20)) throw PlanError("program has an impossible number of slots");
  if (h.order > 1 || (h.flags >> kLendsShift & kLendsMask) > static_cast<std::uint32_t>(Lends::always) || h.flags >= 2 * kFlagSharedFold)
    throw PlanError("program has an unknown order or unknown flags");
  if ((h.flags & kFlagSharedFold) != 0 && (static_cast<Collective>(h.collective) != Collective::all_reduce || h.order != 0))
    throw PlanError("program asks for a shared fold, but is not an all_reduce in canonical order");
  if (h.input_blocks != input_blocks(h, h.rank) || h.output_blocks != output_blocks(h, h.rank))
    throw PlanError("program has buffers of other blocks than its collective");
  if (h.num_steps > (1u << 24) || h.num_operands > (1u << 26) || h.num_scratch > (1u << 24))
    throw PlanError("program is impossibly large");
}

void check_operand(const ProgramHeader& h, std::size_t step, const Operand& o) {
  if (o.where > Where::peer) reject(step, "unknown kind of operand");
  if (o.where == Where::peer) {
    if (o.peer >= h.world || o.peer == h.rank) reject(step, "peer " + std::to_string(o.peer) + " is not another rank");
    if (o.channel >= h.num_channels) reject(step, "channel out of range");
    return;
  }
  if (o.span == 0 || std::uint64_t{o.slot} + o.span > slots_of(h, o.where)) reject(step, "slot out of range");
}

void check_step(const ProgramHeader& h, std::size_t i, std::span<const Operand> sources, std::span<const Operand> targets) {
  if (sources.empty() || targets.empty()) reject(i, "needs at least one source and one target");
  std::size_t local_targets = 0;
  bool local = false;
  for (std::size_t k = 0; k < sources.size(); ++k) {
    const Operand& o = sources[k];
    check_operand(h, i, o);
    local |= o.where != Where::peer;
    if (o.where == Where::peer && std::any_of(sources.begin(), sources.begin() + static_cast<std::ptrdiff_t>(k), [&](const Operand& other) {
          return other.where == Where::peer && other.peer == o.peer && other.channel == o.channel;
        }))
      reject(i, "folds two messages of the same channel");
  }
  for (const Operand& o : targets) {
    check_operand(h, i, o);
    if (o.where == Where::peer && o.raw != 0 && std::uint64_t{o.slot} + o.span > std::uint64_t{output_blocks(h, o.peer)} * h.slots_per_block)
      reject(i, "lands where the peer has no such slot");
    if (o.where == Where::input) reject(i, "writes to INPUT");
    local_targets += o.where != Where::peer;
  }
  if (!local && local_targets == 0) reject(i, "has no local operand");
  if (local_targets > 1) reject(i, "has more than one local target");
  const bool moves_local = sources.size() == 1 && sources[0].where != Where::peer;
  if (!moves_local && local_targets == 0 && targets.size() > 1)
    reject(i, "sends a fold to several peers without a local target");
}

// In a one-round plan peers are read where they stand: all they send is their INPUT, and only OUTPUT is made of it.
void check_one_round(const ProgramHeader& h, std::size_t i, std::span<const Operand> sources, std::span<const Operand> targets) {
  const Operand* target = nullptr;
  for (const Operand& o : targets)
    if (o.where != Where::peer) target = &o;
  if (sources.size() > h.world) reject(i, "is not one of a one-round plan: it has more sources than there are ranks");
  if (target == nullptr || targets.size() > 1)
    if (sources.size() != 1 || sources[0].where != Where::input) reject(i, "is not one of a one-round plan: it sends something else than INPUT");
  if (target != nullptr && target->where != Where::output) reject(i, "is not one of a one-round plan: it uses scratch");
  for (const Operand& o : sources) {
    if (o.where == Where::scratch) reject(i, "is not one of a one-round plan: it uses scratch");
    if (o.where == Where::peer && std::uint64_t{o.slot} + o.span > std::uint64_t{input_blocks(h, o.peer)} * h.slots_per_block)
      reject(i, "is not one of a one-round plan: the peer has no such slot");
    if (target != nullptr && (o.span != target->span || o.slot % h.slots_per_block != target->slot % h.slots_per_block))
      reject(i, "is not one of a one-round plan: its slots differ in length");
  }
}

// Where a range of slots lies once INPUT and OUTPUT share memory: INPUT is renamed to OUTPUT.
struct Range {
  Where where;
  std::uint64_t first, last;  // [first, last)
  bool overlaps(const Range& o) const { return where == o.where && first < o.last && o.first < last; }
  bool operator==(const Range&) const = default;
};

Range place(const ProgramHeader& h, const Operand& o, bool in_place) {
  Range r{o.where, o.slot, std::uint64_t{o.slot} + o.span};
  if (!in_place || o.where == Where::scratch || h.input_blocks == 0 || h.output_blocks == 0) return r;
  std::uint64_t input_shift = 0, output_shift = 0;
  switch (static_cast<Collective>(h.collective)) {
    case Collective::all_gather: input_shift = std::uint64_t{h.rank} * h.slots_per_block; break;
    case Collective::gather: input_shift = std::uint64_t{h.root} * h.slots_per_block; break;
    case Collective::reduce_scatter: output_shift = std::uint64_t{h.rank} * h.slots_per_block; break;
    case Collective::scatter: output_shift = std::uint64_t{h.root} * h.slots_per_block; break;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::all_to_all:
    case Collective::barrier: break;
  }
  const std::uint64_t shift = o.where == Where::input ? input_shift : output_shift;
  return {Where::output, r.first + shift, r.last + shift};
}

// A fold may write over one of its sources, but not shifted against it: it would lose what it has yet to read.
void check_overlap(const ProgramHeader& h, std::size_t i, std::span<const Operand> sources, std::span<const Operand> targets) {
  for (const Operand& t : targets)
    for (const Operand& s : sources)
      for (const bool in_place : {false, true}) {
        if (t.where == Where::peer || s.where == Where::peer) continue;
        const Range to = place(h, t, in_place), from = place(h, s, in_place);
        if (to.overlaps(from) && to != from) reject(i, "its target overlaps a source without being the same");
      }
}

}  // namespace

Program Program::load(std::span<const std::byte> bytes) {
  Program p;
  Cursor cursor(bytes);
  cursor.take(&p.header_, 1);
  const ProgramHeader& h = p.header_;
  check_header(h);
  if (bytes.size() != sizeof(ProgramHeader) + h.num_scratch * sizeof(ScratchSize) + h.num_steps * sizeof(Step) +
                          h.num_operands * sizeof(Operand))
    throw PlanError("program has " + std::to_string(bytes.size()) + " bytes, its header promises another size");
  p.scratch_.resize(h.num_scratch);
  p.steps_.resize(h.num_steps);
  p.operands_.resize(h.num_operands);
  cursor.take(p.scratch_.data(), p.scratch_.size());
  cursor.take(p.steps_.data(), p.steps_.size());
  cursor.take(p.operands_.data(), p.operands_.size());

  for (const ScratchSize& s : p.scratch_) {
    const Where where = static_cast<Where>(s.where);
    if (where != Where::input && where != Where::output) throw PlanError("scratch slot is as large as neither INPUT nor OUTPUT");
    if (s.slot >= slots_of(h, where)) throw PlanError("scratch slot names a slot out of range");
  }
  std::size_t used = 0;  // each operand belongs to one step: the executor keeps the state of its transfer
  for (std::size_t i = 0; i < p.steps_.size(); ++i) {
    const Step& s = p.steps_[i];
    if (s.first != used) reject(i, "operands do not follow those of the step before");
    used += std::size_t{s.num_sources} + s.num_targets;
    if (used > p.operands_.size()) reject(i, "operands out of range");
    check_step(h, i, p.sources(s), p.targets(s));
    check_overlap(h, i, p.sources(s), p.targets(s));
    if (p.one_round()) check_one_round(h, i, p.sources(s), p.targets(s));
  }
  if (used != p.operands_.size()) throw PlanError("program has operands that belong to no step");
  p.derive_dependencies(false);
  p.derive_dependencies(true);
  return p;
}

// A step depends on every earlier one with which it shares slots of which either is written. What is further back than
// the window is complete before the step begins.
void Program::derive_dependencies(bool in_place) {
  struct Use {
    Range range;
    bool writes;
    std::uint32_t step;
  };
  std::vector<Use> uses;
  std::size_t oldest = 0;  // the first use within the window
  std::vector<Dependency>& all = dependencies_[in_place];
  std::vector<std::uint32_t>& first = first_dependency_[in_place];
  all.clear();
  first.assign(1, 0);
  for (std::uint32_t i = 0; i < steps_.size(); ++i) {
    const std::size_t begin = all.size();
    const std::size_t mine = uses.size();
    const auto from = sources(steps_[i]);
    const bool waits = one_round() || from.size() != 1 || from[0].where != Where::peer || from[0].slot == 0;
    for (const Operand& o : sources(steps_[i]))
      if (o.where != Where::peer) uses.push_back({place(header_, o, in_place), false, i});
    for (const Operand& o : targets(steps_[i]))
      if (o.where != Where::peer) uses.push_back({place(header_, o, in_place), true, i});
    while (oldest < mine && uses[oldest].step + kWindow <= i) ++oldest;
    for (std::size_t u = mine; u < uses.size(); ++u) {
      for (std::size_t v = oldest; v < mine; ++v) {
        if (!waits || !(uses[u].writes || uses[v].writes) || !uses[u].range.overlaps(uses[v].range)) continue;
        const bool streamed = uses[u].range == uses[v].range;
        const auto known = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end(),
                                        [&](const Dependency& d) { return d.step == uses[v].step; });
        if (known == all.end())
          all.push_back({uses[v].step, streamed});
        else
          known->streamed &= streamed;
      }
    }
    first.push_back(static_cast<std::uint32_t>(all.size()));
  }
}

std::span<const Dependency> Program::dependencies(std::size_t i, bool in_place) const {
  const auto& first = first_dependency_[in_place];
  return {dependencies_[in_place].data() + first[i], first[i + 1] - first[i]};
}

}  // namespace hccl_py
