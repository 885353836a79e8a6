// SPDX-License-Identifier: Apache-2.0
// The loader: what it refuses, that no bytes can crash it, and the dependencies that it derives.
#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/program.hpp"
#include "programs.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

// Why the loader refuses these bytes; "" if it takes them.
std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    Program::load(bytes);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

void check_refused(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) fail(__FILE__, __LINE__, "no '" + part + "' in '" + text + "'");
}

// A program of rank 1 of 3 with every kind of operand: it loads.
Writer sample() {
  Writer w(Collective::all_reduce, 3, 1, 0, 2);
  w.add_scratch(Where::input, 1).add_scratch(Where::output, 0);
  w.step({in(0)}, {peer(0), peer(2, 1)});
  w.step({raw(peer(0)), in(0), raw(peer(2))}, {out(0), peer(0, 1)});
  w.step({in(1)}, {scratch(0)});
  w.step({scratch(0), in(1)}, {out(1)});
  return w;
}

void check_header_refused(const std::function<void(ProgramHeader&)>& spoil, const std::string& part) {
  Writer w = sample();
  spoil(w.header);
  check_refused(refusal(w.bytes()), part);
}

void check_step_refused(const std::function<void(Writer&)>& add, const std::string& part) {
  Writer w = sample();
  add(w);
  const std::string text = refusal(w.bytes());
  check_refused(text, part);
  check_refused(text, "step 4");
}

void test_sound_programs_load() {
  const Program p = sample().program();
  CHECK_EQ(p.steps().size(), 4u);
  CHECK_EQ(p.sources(p.steps()[1]).size(), 3u);
  CHECK_EQ(p.targets(p.steps()[1]).size(), 2u);
  CHECK_EQ(p.targets(p.steps()[1])[1].channel, 1u);
  CHECK(p.collective() == Collective::all_reduce);
  CHECK(!p.one_round());
  for (std::uint32_t world : {1u, 2u, 5u})
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      CHECK_EQ(refusal(direct_all_reduce(world, rank).bytes()), "");
      CHECK_EQ(refusal(direct_all_reduce(world, rank, true).bytes()), "");
      if (world > 1) CHECK_EQ(refusal(ring_all_reduce(world, rank).bytes()), "");
      CHECK_EQ(refusal(flat_broadcast(world, rank, 0, true).bytes()), "");
      CHECK_EQ(refusal(direct_all_gather(world, rank, true).bytes()), "");
      CHECK_EQ(refusal(direct_all_to_all(world, rank).bytes()), "");
      CHECK_EQ(refusal(flat_barrier(world, rank).bytes()), "");
    }
}

void test_every_cut_is_refused() {
  const std::vector<std::byte> whole = sample().bytes();
  for (std::size_t n = 0; n < whole.size(); ++n) CHECK(!refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)}).empty());
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  check_refused(refusal(longer), "bytes");
}

void test_headers_out_of_range_are_refused() {
  check_header_refused([](ProgramHeader& h) { h.magic ^= 1; }, "magic");
  check_header_refused([](ProgramHeader& h) { h.version = 2; }, "version 2");
  check_header_refused([](ProgramHeader& h) { h.collective = kNumCollectives; }, "collective");
  check_header_refused([](ProgramHeader& h) { h.order = 2; }, "order");
  check_header_refused([](ProgramHeader& h) { h.world = 0; }, "world");
  check_header_refused([](ProgramHeader& h) { h.rank = 3; }, "world");
  check_header_refused([](ProgramHeader& h) { h.root = 3; }, "world");
  check_header_refused([](ProgramHeader& h) { h.slots_per_block = 0; }, "slots");
  check_header_refused([](ProgramHeader& h) { h.slots_per_block = (1u << 20) + 1; }, "slots");
  check_header_refused([](ProgramHeader& h) { h.input_blocks = 2; }, "blocks");
  check_header_refused([](ProgramHeader& h) { h.output_blocks = 2; }, "blocks");
  check_header_refused([](ProgramHeader& h) { h.input_blocks = 0; }, "blocks");
  check_header_refused([](ProgramHeader& h) { h.num_channels = 1; }, "channel");
  check_header_refused([](ProgramHeader& h) { h.flags = 6; }, "flags");
  check_header_refused([](ProgramHeader& h) { h.flags = 16; }, "flags");
  // More tables than bytes; the largest of each.
  Writer w = sample();
  std::vector<std::byte> bytes = w.bytes();
  for (const std::size_t field : {offsetof(ProgramHeader, num_scratch), offsetof(ProgramHeader, num_steps), offsetof(ProgramHeader, num_operands)})
    for (const std::uint32_t value : {0u, 1000u, 1u << 24, ~0u}) {
      std::vector<std::byte> spoiled = bytes;
      std::memcpy(spoiled.data() + field, &value, sizeof value);
      CHECK(!refusal(spoiled).empty());
    }
}

void test_steps_out_of_range_are_refused() {
  check_step_refused([](Writer& w) { w.step({}, {out(0)}); }, "at least one source");
  check_step_refused([](Writer& w) { w.step({in(0)}, {}); }, "at least one source");
  check_step_refused([](Writer& w) { w.step({in(0)}, {in(1)}); }, "writes to INPUT");
  check_step_refused([](Writer& w) { w.step({peer(0)}, {peer(2)}); }, "no local operand");
  check_step_refused([](Writer& w) { w.step({in(0)}, {out(0), scratch(0)}); }, "more than one local target");
  check_step_refused([](Writer& w) { w.step({in(0), peer(0)}, {peer(0), peer(2)}); }, "without a local target");
  check_step_refused([](Writer& w) { w.step({in(2)}, {out(0)}); }, "slot out of range");
  check_step_refused([](Writer& w) { w.step({in(1, 2)}, {out(0, 2)}); }, "slot out of range");
  check_step_refused([](Writer& w) { w.step({in(~0u, 2)}, {out(0)}); }, "slot out of range");
  check_step_refused([](Writer& w) { w.step({in(0, 0)}, {out(0)}); }, "slot out of range");
  check_step_refused([](Writer& w) { w.step({in(0)}, {out(2)}); }, "slot out of range");
  check_step_refused([](Writer& w) { w.step({scratch(2)}, {out(0)}); }, "slot out of range");
  check_step_refused([](Writer& w) { w.step({peer(3)}, {out(0)}); }, "peer 3");
  check_step_refused([](Writer& w) { w.step({peer(1)}, {out(0)}); }, "peer 1");
  check_step_refused([](Writer& w) { w.step({peer(0, 2)}, {out(0)}); }, "channel");
  check_step_refused([](Writer& w) { w.step({Operand{static_cast<Where>(4), 0, 0, 0, 0, 1}}, {out(0)}); }, "kind of operand");
  check_step_refused([](Writer& w) { w.step({in(0)}, {Operand{static_cast<Where>(255), 0, 0, 0, 0, 1}}); }, "kind of operand");
  // A fold takes from all its sources at once: two messages of one channel cannot be there together.
  check_step_refused([](Writer& w) { w.step({peer(0), peer(0)}, {out(0)}); }, "same channel");
}

void test_scratch_out_of_range_is_refused() {
  for (const ScratchSize size : {ScratchSize{2, 0}, ScratchSize{3, 0}, ScratchSize{99, 0}, ScratchSize{0, 2}, ScratchSize{1, ~0u}}) {
    Writer w = sample();
    w.scratches[0] = size;
    check_refused(refusal(w.bytes()), "scratch");
  }
}

// Operands belong to one step each: the executor keeps their state there.
void test_shared_and_unused_operands_are_refused() {
  Writer shared = sample();
  shared.steps[3].first = shared.steps[2].first;
  check_refused(refusal(shared.bytes()), "operands");
  Writer beyond = sample();
  beyond.steps[3].first = ~0u;
  check_refused(refusal(beyond.bytes()), "operands");
  Writer unused = sample();
  unused.operands.push_back(in(0));
  check_refused(refusal(unused.bytes()), "operands");
}

// A fold may go where one of its sources is, but not shifted: it would overwrite what it has yet to read.
void test_a_target_shifted_against_its_source_is_refused() {
  Writer w(Collective::all_to_all, 4, 0);
  CHECK_EQ(refusal(Writer(w).step({out(0, 2)}, {out(0, 2)}).bytes()), "");
  CHECK_EQ(refusal(Writer(w).step({out(0, 2)}, {out(2, 2)}).bytes()), "");
  check_refused(refusal(Writer(w).step({out(0, 2)}, {out(1, 2)}).bytes()), "overlap");
  check_refused(refusal(Writer(w).step({in(1, 2)}, {out(0, 2)}).bytes()), "overlap");  // once it is in place
  Writer gather(Collective::all_gather, 4, 2, 0, 2);
  CHECK_EQ(refusal(Writer(gather).step({in(0, 2)}, {out(4, 2)}).bytes()), "");
  check_refused(refusal(Writer(gather).step({in(0, 2)}, {out(3, 2)}).bytes()), "overlap");
}

// In a one-round plan each rank reads the others' INPUT: what names it is used as an address.
void test_one_round_programs_name_slots_of_the_peers() {
  const auto one_round = [](Collective c) { return Writer(c, 3, 1).one_round(); };
  CHECK_EQ(refusal(one_round(Collective::all_to_all).step({peer(0, 0, 1)}, {out(0)}).bytes()), "");
  check_refused(refusal(one_round(Collective::all_to_all).step({peer(0, 0, 3)}, {out(0)}).bytes()), "one-round");
  check_refused(refusal(one_round(Collective::all_to_all).step({peer(0, 0, ~0u)}, {out(0)}).bytes()), "one-round");
  check_refused(refusal(one_round(Collective::all_reduce).step({peer(0, 0, 1)}, {out(0)}).bytes()), "one-round");
  CHECK_EQ(refusal(one_round(Collective::scatter).step({peer(0, 0, 1)}, {out(0)}).bytes()), "");
  check_refused(refusal(one_round(Collective::scatter).step({peer(2, 0, 0)}, {out(0)}).bytes()), "one-round");
  check_refused(refusal(one_round(Collective::broadcast).step({peer(2)}, {out(0)}).bytes()), "one-round");
  check_refused(refusal(one_round(Collective::all_reduce).add_scratch(Where::input, 0).step({in(0)}, {scratch(0)}).bytes()), "one-round");
  check_refused(refusal(one_round(Collective::all_reduce).step({in(0)}, {out(0)}).step({out(0)}, {peer(0)}).bytes()), "one-round");
  check_refused(refusal(one_round(Collective::all_reduce).step({in(0), peer(0)}, {peer(2)}).bytes()), "one-round");
  // More sources than ranks.
  check_refused(refusal(one_round(Collective::all_reduce).step({in(0), in(0), in(0), in(0)}, {out(0)}).bytes()), "one-round");
  // Slots of a block differ in length.
  Writer two_slots(Collective::all_reduce, 3, 1, 0, 2);
  two_slots.one_round();
  CHECK_EQ(refusal(Writer(two_slots).step({peer(0, 0, 1)}, {out(1)}).bytes()), "");
  check_refused(refusal(Writer(two_slots).step({peer(0, 0, 1)}, {out(0)}).bytes()), "one-round");
}

// Whatever stands in the bytes: a PlanError or a program that can be looked at from all sides.
void test_no_bytes_crash_the_loader() {
  std::mt19937_64 random(20240607);
  const std::vector<std::vector<std::byte>> seeds{sample().bytes(), ring_all_reduce(4, 2).bytes(), direct_all_reduce(3, 0, true).bytes()};
  std::size_t loaded = 0, refused = 0;
  for (int round = 0; round < 30000; ++round) {
    std::vector<std::byte> bytes = seeds[static_cast<std::size_t>(round) % seeds.size()];
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      const std::size_t at = random() % bytes.size();
      if (random() % 2 == 0)
        bytes[at] ^= static_cast<std::byte>(1u << (random() % 8));
      else
        bytes[at] = static_cast<std::byte>(random());
    }
    if (random() % 16 == 0) bytes.resize(random() % (bytes.size() + 1));
    try {
      const Program p = Program::load(bytes);
      ++loaded;
      for (std::size_t i = 0; i < p.steps().size(); ++i) {
        std::uint32_t sum = 0;
        for (const Operand& o : p.sources(p.steps()[i])) sum += o.slot;
        for (const Operand& o : p.targets(p.steps()[i])) sum += o.slot;
        for (const bool in_place : {false, true})
          for (const Dependency& d : p.dependencies(i, in_place)) CHECK(d.step < i);
        CHECK(sum != 0xdeadbeef);
      }
    } catch (const PlanError&) {
      ++refused;
    }
  }
  CHECK(loaded > 100);
  CHECK(refused > 100);
}

std::string dependencies(const Program& p, std::size_t i, bool in_place) {
  std::string text;
  for (const Dependency& d : p.dependencies(i, in_place)) text += std::to_string(d.step) + (d.streamed ? "s " : "f ");
  return text;
}

void test_dependencies_of_buffers_that_are_apart() {
  Writer w(Collective::all_reduce, 2, 0, 0, 4);
  w.add_scratch(Where::input, 0);
  w.step({in(0, 2)}, {out(0, 2)});     // 0
  w.step({out(0, 2)}, {peer(1)});      // 1: reads what 0 wrote, the same slots
  w.step({out(1, 1)}, {peer(1, 1)});   // 2: reads a part of it
  w.step({peer(1)}, {out(0, 2)});      // 3: writes over what 0 wrote and 1 reads, and 2 in part
  w.step({in(0, 2)}, {peer(1)});       // 4: two readers do not disturb each other
  w.step({in(0)}, {scratch(0)});       // 5
  w.step({scratch(0)}, {peer(1, 1)});  // 6
  w.step({peer(1, 1)}, {scratch(0)});  // 7
  const Program p = w.program();
  CHECK_EQ(dependencies(p, 0, false), "");
  CHECK_EQ(dependencies(p, 1, false), "0s ");
  CHECK_EQ(dependencies(p, 2, false), "0f ");
  CHECK_EQ(dependencies(p, 3, false), "0s 1s 2f ");
  CHECK_EQ(dependencies(p, 4, false), "");
  CHECK_EQ(dependencies(p, 5, false), "");
  CHECK_EQ(dependencies(p, 6, false), "5s ");
  CHECK_EQ(dependencies(p, 7, false), "5s 6s ");
}

void test_dependencies_in_place() {
  // all_reduce: INPUT and OUTPUT are the same slots.
  Writer w(Collective::all_reduce, 2, 0, 0, 2);
  w.step({in(0)}, {peer(1)}).step({peer(1)}, {out(0)}).step({in(0, 2)}, {peer(1)});
  CHECK_EQ(dependencies(w.program(), 1, false), "");
  CHECK_EQ(dependencies(w.program(), 1, true), "0s ");
  CHECK_EQ(dependencies(w.program(), 2, true), "1f ");
  // all_gather: INPUT is block `rank` of OUTPUT.
  Writer gather(Collective::all_gather, 3, 1, 0, 2);
  gather.step({in(1)}, {peer(0)}).step({peer(0)}, {out(3)}).step({peer(0)}, {out(2)}).step({peer(0)}, {out(1)});
  CHECK_EQ(dependencies(gather.program(), 1, true), "0s ");
  CHECK_EQ(dependencies(gather.program(), 2, true), "");
  CHECK_EQ(dependencies(gather.program(), 3, true), "");
  // reduce_scatter: OUTPUT is block `rank` of INPUT.
  Writer scatter(Collective::reduce_scatter, 3, 2);
  scatter.step({in(2)}, {peer(0)}).step({in(0)}, {peer(1)}).step({peer(0)}, {out(0)});
  CHECK_EQ(dependencies(scatter.program(), 2, true), "0s ");
  CHECK_EQ(dependencies(scatter.program(), 2, false), "");
  // gather and scatter: at the root.
  Writer at_root(Collective::gather, 3, 1, 1);
  at_root.step({in(0)}, {peer(0)}).step({peer(0)}, {out(1)}).step({peer(2)}, {out(2)});
  CHECK_EQ(dependencies(at_root.program(), 1, true), "0s ");
  CHECK_EQ(dependencies(at_root.program(), 2, true), "");
  Writer from_root(Collective::scatter, 3, 1, 1);
  from_root.step({in(1)}, {peer(0)}).step({peer(0)}, {out(0)});
  CHECK_EQ(dependencies(from_root.program(), 1, true), "0s ");
}

// One step that touches another in two ways waits for the stricter one.
void test_the_stricter_dependency_wins() {
  Writer w(Collective::all_to_all, 4, 0);
  w.step({peer(1)}, {out(0, 2)});
  w.step({out(0, 2)}, {out(2, 2)});
  w.step({out(2, 2)}, {out(0, 2)});
  w.step({out(0, 1)}, {out(3, 1)});
  CHECK_EQ(dependencies(w.program(), 2, false), "1s 0s ");
  CHECK_EQ(dependencies(w.program(), 3, false), "0f 2f 1f ");
}

// Dependencies on steps that have left the window when this one enters it say nothing; a long program must not pay for them.
void test_long_programs_load_quickly() {
  Writer w(Collective::all_reduce, 2, 0);
  for (int i = 0; i < 20000; ++i) w.step({peer(1)}, {out(0)});
  const Program p = w.program();
  CHECK_EQ(p.dependencies(19999, false).size(), kWindow - 1);
  CHECK_EQ(p.dependencies(19999, false)[0].step, 19999 - (kWindow - 1));
}

}  // namespace

int main() {
  return run_tests({
      {"sound programs load", test_sound_programs_load},
      {"every cut is refused", test_every_cut_is_refused},
      {"headers out of range are refused", test_headers_out_of_range_are_refused},
      {"steps out of range are refused", test_steps_out_of_range_are_refused},
      {"scratch out of range is refused", test_scratch_out_of_range_is_refused},
      {"shared and unused operands are refused", test_shared_and_unused_operands_are_refused},
      {"a target shifted against its source is refused", test_a_target_shifted_against_its_source_is_refused},
      {"one-round programs name slots of the peers", test_one_round_programs_name_slots_of_the_peers},
      {"no bytes crash the loader", test_no_bytes_crash_the_loader},
      {"dependencies of buffers that are apart", test_dependencies_of_buffers_that_are_apart},
      {"dependencies in place", test_dependencies_in_place},
      {"the stricter dependency wins", test_the_stricter_dependency_wins},
      {"long programs load quickly", test_long_programs_load_quickly},
  });
}
