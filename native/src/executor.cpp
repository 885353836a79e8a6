// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/executor.hpp"

#include <algorithm>
#include <cstring>

#include "hccl_py/error.hpp"

namespace hccl_py {
namespace {

template <class T>
void note_once(std::vector<T*>& list, T& item) {
  if (std::find(list.begin(), list.end(), &item) == list.end()) list.push_back(&item);
}

// From which size on private memory is lent; 0: never. The peer then reads lines that nobody has written since it read
// them last, or that are on their way out of our cache. Where both write what the other reads, as sums in place, it costs
// as much as a ring, and the kernel's share comes on top; where one rank folds all of it, ring and fold overlap.
std::uint64_t from_private(Collective collective, std::uint64_t least, bool in_place) {
  switch (collective) {
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::scatter:
    case Collective::gather:
    case Collective::broadcast: return least;
    case Collective::all_reduce:
    case Collective::reduce_scatter: return in_place ? 0 : 4 * least;
    case Collective::reduce:
    case Collective::barrier: return 0;
  }
  return 0;
}

constexpr std::uint64_t kPastCacheBytes = 1024 * 1024;  // a share so large is not in the cache when it is read next

}  // namespace

Executor::Executor(Program program, Ports& ports, Scratch& scratch, std::size_t segment_bytes, std::uint32_t communicator)
    : program_(std::move(program)), scratch_(scratch), segment_bytes_(segment_bytes), communicator_(communicator), isa_(best_isa()) {
  const ProgramHeader& h = program_.header();
  if (h.num_channels > ports.channels())
    throw PlanError("plan uses " + std::to_string(h.num_channels) + " channels, this group has " + std::to_string(ports.channels()));
  input_starts_.resize(std::size_t{h.input_blocks} * h.slots_per_block + 1);
  output_starts_.resize(std::size_t{h.output_blocks} * h.slots_per_block + 1);
  scratch_starts_.resize(std::size_t{h.num_scratch} + 1);
  operands_.resize(h.num_operands);
  steps_.resize(h.num_steps);
  std::vector<std::uint32_t> sent(std::size_t{h.world} * ports.channels()), received(sent.size());
  std::size_t widest = 1;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = program_.steps()[i];
    RunStep& run = steps_[i];
    run.sources = {operands_.data() + step.first, step.num_sources};
    run.targets = {operands_.data() + step.first + step.num_sources, step.num_targets};
    if (step.num_sources > 1 && !reduces(program_.collective()))
      throw PlanError("plan folds in a collective that does not reduce");
    widest = std::max<std::size_t>(widest, step.num_sources);
    for (std::size_t k = 0; k < run.sources.size(); ++k) {
      const Operand& o = program_.sources(step)[k];
      if (o.where != Where::peer) continue;
      run.sources[k].recv = &ports.recv(o.peer, o.channel);
      run.sources[k].ordinal = received[std::size_t{o.peer} * ports.channels() + o.channel]++;
      run.wire |= run.sources[k].recv->remote;
      note_once(used_recv_, *run.sources[k].recv);
    }
    for (std::size_t k = 0; k < run.targets.size(); ++k) {
      const Operand& o = program_.targets(step)[k];
      if (o.where != Where::peer) {
        run.local_target = &run.targets[k];
        continue;
      }
      run.targets[k].send = &ports.send(o.peer, o.channel);
      run.targets[k].ordinal = sent[std::size_t{o.peer} * ports.channels() + o.channel]++;
      note_once(used_send_, *run.targets[k].send);
    }
    const bool moves_local = run.sources.size() == 1 && run.sources[0].recv == nullptr;
    run.shape = moves_local ? Shape::move_local : run.local_target != nullptr ? Shape::make_local : Shape::make_peer;
  }
  fold_sources_.resize(widest);
  fold_staging_.resize(kLandBytes / sizeof(Line));
}

void Executor::lay_out(std::vector<std::uint64_t>& starts, std::uint32_t blocks, std::uint64_t count,
                       const std::uint64_t* counts, std::size_t element) const {
  const std::uint32_t slots = program_.header().slots_per_block;
  std::uint64_t at = 0;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    const std::uint64_t n = counts != nullptr && blocks > 1 ? counts[b] : count;
    for (std::uint32_t k = 0; k < slots; ++k)
      starts[std::size_t{b} * slots + k] = (at + slot_begin(n, slots, k)) * element;
    at += n;
  }
  starts[std::size_t{blocks} * slots] = at * element;
}

bool Executor::place(const Operand& operand, const Call& call, RunOperand& run, std::uint64_t& bytes) {
  const std::vector<std::uint64_t>* starts = nullptr;
  std::byte* base = nullptr;
  switch (operand.where) {
    case Where::input:
      starts = &input_starts_;
      base = const_cast<std::byte*>(call.input);  // the loader made sure that INPUT is never a target
      break;
    case Where::output:
      starts = &output_starts_;
      base = call.output;
      break;
    case Where::scratch:
      starts = &scratch_starts_;
      base = scratch_.data();
      break;
    case Where::peer: return true;
  }
  run.memory = base + (*starts)[operand.slot];
  const std::uint64_t length = (*starts)[operand.slot + operand.span] - (*starts)[operand.slot];
  if (bytes == kUnknown) bytes = length;
  return bytes == length;
}

bool Executor::begin(const Call& call, const Fingerprint& mine, const Lending& lending) {
  const ProgramHeader& h = program_.header();
  mine_ = mine;
  failure_ = {};
  touched_ = false;
  traffic_ = {};
  first_open_ = 0;
  element_ = size_of(call.dtype);
  fold_ = reduces(call.collective) ? fold_kernel(call.op, call.dtype, isa_) : nullptr;
  scale_ = 1.0 / h.world;
  lay_out(input_starts_, h.input_blocks, call.count, call.input_counts, element_);
  lay_out(output_starts_, h.output_blocks, call.count, call.output_counts, element_);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < program_.scratch().size(); ++i) {
    const ScratchSize& like = program_.scratch()[i];
    const auto& starts = static_cast<Where>(like.where) == Where::input ? input_starts_ : output_starts_;
    scratch_starts_[i] = at;
    at += starts[like.slot + 1] - starts[like.slot];
  }
  scratch_starts_.back() = at;
  if (scratch_.size() < at) scratch_.resize(at);
  const std::uint64_t input_bytes = input_starts_.back(), output_bytes = output_starts_.back();
  in_place_ = input_bytes != 0 && output_bytes != 0 && call.input < call.output + output_bytes &&
              call.output < call.input + input_bytes;
  for (SendPort* port : used_send_) port->turn = 0;
  for (RecvPort* port : used_recv_) port->turn = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = program_.steps()[i];
    RunStep& run = steps_[i];
    run.made = run.progress = 0;
    run.complete = false;
    std::uint64_t bytes = kUnknown;
    for (std::size_t k = 0; k < run.sources.size(); ++k) {
      RunOperand& o = run.sources[k];
      o.moved = 0;
      o.way = Way::stream;
      if (o.recv != nullptr) o.head_left = head_bytes(o.recv->remote, o.ordinal);
      if (!place(program_.sources(step)[k], call, o, bytes)) bytes = kUnknown - 1;
    }
    for (std::size_t k = 0; k < run.targets.size(); ++k) {
      RunOperand& o = run.targets[k];
      o.moved = 0;
      if (o.send != nullptr) o.head_left = head_bytes(o.send->remote, o.ordinal);
      if (!place(program_.targets(step)[k], call, o, bytes)) bytes = kUnknown - 1;
    }
    if (bytes >= kUnknown - 1) {
      fail(FailureKind::internal, -1, i, "the counts of this call do not fit the plan");
      return false;
    }
    run.bytes = bytes;
  }
  choose_ways(call, lending);
  return true;
}

// Which messages go by loan: what is large, in a program that ends without buffers between ranks. A fold's result lands
// where the peer wants it, as it is in our cache; what is sent from where it lies is left for the peer to take.
void Executor::choose_ways(const Call& call, const Lending& lending) {
  const bool may = program_.lends() == Lends::always || (program_.lends() == Lends::apart && !in_place_);
  const bool lends = may && (lending.shared_bytes != 0 || lending.private_bytes != 0);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = program_.steps()[i];
    RunStep& run = steps_[i];
    run.landing = run.stream_past = false;
    const bool made_here = run.sources.size() > 1;
    const std::byte* from = run.shape == Shape::move_local   ? run.sources[0].memory
                            : run.shape == Shape::make_local ? run.local_target->memory
                                                             : nullptr;
    const Where where = run.shape == Shape::move_local ? program_.sources(step)[0].where
                                                       : (from != nullptr ? program_.targets(step)[static_cast<std::size_t>(run.local_target - run.targets.data())].where
                                                                          : Where::peer);
    SharedPlace place;
    if (where == Where::input && lending.input.segment != 0)
      place = {lending.input.segment, lending.input.offset + static_cast<std::uint64_t>(from - call.input)};
    if (where == Where::output && lending.output.segment != 0)
      place = {lending.output.segment, lending.output.offset + static_cast<std::uint64_t>(from - call.output)};
    const bool shared = place.segment != 0;
    const std::uint64_t least = shared ? lending.shared_bytes : from_private(call.collective, lending.private_bytes, in_place_);
    for (std::size_t k = 0; k < run.targets.size(); ++k) {
      RunOperand& target = run.targets[k];
      target.way = Way::stream;
      if (!lends || target.send == nullptr || target.send->remote || from == nullptr) continue;
      const Operand& o = program_.targets(step)[k];
      std::byte* landing = o.raw != 0 && !call.uneven() && !lending.landings.empty() ? lending.landings[o.peer] : nullptr;
      if (landing != nullptr && lending.shared_bytes != 0 && run.bytes >= lending.shared_bytes && (made_here || !shared)) {
        target.way = Way::landed;
        const std::uint32_t slots = program_.header().slots_per_block;
        target.landing = landing + (o.slot / slots * call.count + slot_begin(call.count, slots, o.slot % slots)) * element_;
        run.landing = true;
      } else if (least != 0 && run.bytes >= least && target.send->pipe->lends(shared)) {
        target.way = Way::lent;
        target.place = shared ? place : SharedPlace{0, reinterpret_cast<std::uintptr_t>(from)};
      }
    }
    const bool in_place = std::any_of(run.sources.begin(), run.sources.end(), [&](const RunOperand& o) { return o.memory == from; });
    run.landing = run.landing && made_here && std::all_of(run.targets.begin(), run.targets.end(), [](const RunOperand& o) {
                    return o.send == nullptr || o.way == Way::landed;
                  });
    run.stream_past = run.landing && !in_place && run.bytes >= kPastCacheBytes;
  }
}

// How far step i may go, by what it depends on.
std::uint64_t Executor::limit(std::size_t i) const {
  std::uint64_t upto = steps_[i].bytes;
  for (const Dependency& d : program_.dependencies(i, in_place_)) {
    const RunStep& earlier = steps_[d.step];
    if (earlier.complete) continue;
    if (!d.streamed) return kUnknown;
    upto = std::min(upto, earlier.progress);
  }
  return upto;
}

Executor::Outcome Executor::advance() {
  bool moved = false;
  const std::size_t end = std::min(first_open_ + kWindow, steps_.size());
  for (std::size_t i = first_open_; i < end; ++i) {
    if (steps_[i].complete) continue;
    moved |= advance_step(i);
    if (failure_) return Outcome::failed;
  }
  for (; first_open_ < steps_.size() && steps_[first_open_].complete; ++first_open_) moved = true;
  const bool over = first_open_ == steps_.size();
  if (moved && !over) return Outcome::moved;
  // Nothing more for now: what a pipe still holds back must go, or the peers wait for it.
  bool flushed = true;
  for (SendPort* port : used_send_) {
    flushed &= port->pipe->flush();
    if (port->pipe->state() == PipeState::open) continue;
    fail(FailureKind::peer_lost, static_cast<int>(port->peer), first_open_, "the connection broke while sending");
    return Outcome::failed;
  }
  if (over && flushed) return Outcome::done;
  return moved ? Outcome::moved : Outcome::idle;
}

bool Executor::advance_step(std::size_t i) {
  RunStep& step = steps_[i];
  const std::uint64_t upto = limit(i);
  if (upto == kUnknown) return false;
  bool moved = false;
  const std::byte* from = nullptr;  // where the peers' bytes come from, if not straight from a fold
  std::uint64_t ready = 0;          // how many of them are there
  switch (step.shape) {
    case Shape::move_local: {
      from = step.sources[0].memory;
      ready = upto;
      if (step.local_target == nullptr || step.local_target->memory == from) {
        moved = step.made < upto;
        step.made = upto;
      } else if (step.made < upto) {
        const std::uint64_t n = std::min<std::uint64_t>(upto - step.made, segment_bytes_);
        copy_bytes(step.local_target->memory + step.made, from + step.made, n);
        traffic_.read += n;
        traffic_.written += n;
        step.made += n;
        moved = touched_ = true;
      }
      break;
    }
    case Shape::make_local:
    case Shape::make_peer:
      moved = make(step, i, upto);
      if (failure_) return false;
      if (step.shape == Shape::make_local) {
        from = step.local_target->memory;
        ready = step.made;
      }
      break;
  }
  std::uint64_t progress = step.made;
  bool complete = step.made == step.bytes;
  for (const RunOperand& source : step.sources) complete &= source.head_left == 0;
  for (RunOperand& target : step.targets) {
    if (target.send == nullptr) continue;
    if (step.shape != Shape::make_peer) {
      moved |= target.way == Way::stream ? push(target, i, from, ready, step.bytes)
               : target.way == Way::lent ? lend(target, i, ready, step.bytes)
                                         : land(target, i, from, ready, step.bytes);
      if (failure_) return false;
    }
    progress = std::min(progress, target.moved);
    complete &= target.moved == step.bytes && target.head_left == 0;
  }
  step.progress = progress;
  step.complete = complete;
  return moved;
}

// A source lacks its next element (or header), a target room for one byte. Only where it is their turn: others wait for us.
// If it is none of these, a target that takes less than it could: its pipe has room for a byte, but not for what is due.
int Executor::waiting_for(int only) const {
  int behind = -1;
  const auto asked = [&](std::uint32_t peer) { return only < 0 || static_cast<int>(peer) == only; };
  const std::size_t end = std::min(first_open_ + kWindow, steps_.size());
  for (std::size_t i = first_open_; i < end; ++i) {
    const RunStep& step = steps_[i];
    if (step.complete || (only < 0 && limit(i) == kUnknown)) continue;
    for (const RunOperand& source : step.sources) {
      if (source.recv == nullptr || !asked(source.recv->peer) || source.recv->turn != source.ordinal) continue;
      if (source.head_left == 0 && source.moved == step.bytes) continue;
      const std::size_t least = source.head_left != 0 ? source.head_left : std::min<std::uint64_t>(element_, step.bytes - source.moved);
      if (source.head_left == 0 && source.way != Way::stream) {
        if (source.recv->pipe->arrived() < least) return static_cast<int>(source.recv->peer);
        continue;
      }
      if (source.recv->pipe->peek(least, least).empty()) return static_cast<int>(source.recv->peer);
    }
    for (const RunOperand& target : step.targets) {
      if (target.send == nullptr || !asked(target.send->peer)) continue;
      // All of it is offered, not all is taken.
      if (target.way == Way::lent && target.head_left == 0 && target.send->turn > target.ordinal && target.moved != step.bytes)
        return static_cast<int>(target.send->peer);
      if (target.send->turn != target.ordinal || (target.way != Way::stream && target.head_left == 0)) continue;
      if (target.head_left == 0 && target.moved == step.bytes) continue;
      if (target.send->pipe->reserve(1).empty()) return static_cast<int>(target.send->peer);
      if (only < 0 && behind < 0 && (target.head_left != 0 || target.moved < limit(i))) behind = static_cast<int>(target.send->peer);
    }
  }
  if (only >= 0 || behind >= 0) return behind;
  for (SendPort* port : used_send_)
    if (!port->pipe->flush()) return static_cast<int>(port->peer);
  return -1;
}

void Executor::fail(FailureKind kind, int culprit, std::size_t step, std::string text) {
  failure_.kind = kind;
  failure_.culprit = culprit;
  failure_.step = static_cast<int>(step);
  failure_.sequence = mine_.sequence;
  failure_.text = std::move(text);
}

}  // namespace hccl_py
