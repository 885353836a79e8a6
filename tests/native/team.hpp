// SPDX-License-Identifier: Apache-2.0
// Groups for tests: the ranks of one group as threads, over any transport, with a few plans loaded.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "hccl_py/failure.hpp"
#include "hccl_py/group.hpp"
#include "programs.hpp"

namespace hccl_py::testing {

enum class Over { loopback, shm, tcp, mixed };  // mixed: the last rank is on a host of its own

inline const char* name_of(Over over) {
  switch (over) {
    case Over::loopback: return "loopback";
    case Over::shm: return "shm";
    case Over::tcp: return "tcp";
    case Over::mixed: return "mixed";
  }
  return "";
}

// Runs body(rank) in a thread for each rank; passes on the first exception.
inline void in_ranks(std::uint32_t world, const std::function<void(std::uint32_t)>& body) {
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// What body() throws; "" if nothing.
template <class Error>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::string("!") + error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "";
}

inline GroupOptions patient() {
  GroupOptions options;
  options.timeout_s = 60;
  options.tcp.connections = 2;
  options.tcp.interfaces = "127.0.0.0/8";
  options.shm.ring_bytes = 64 * 1024;
  options.shm.slot_bytes = 4096;
  options.segment_bytes = 4096;
  return options;
}

class Team {
 public:
  Team(Over over, std::uint32_t world, const GroupOptions& options = patient()) : groups(world) {
    const auto hub = over == Over::loopback ? std::make_shared<Hub>(world) : nullptr;
    for (std::uint32_t r = 0; r < world; ++r) {
      GroupOptions mine = options;
      mine.use_shm = over != Over::tcp;
      mine.use_tcp = over == Over::tcp || over == Over::mixed;
      mine.host_id = over == Over::tcp ? "host" + std::to_string(r) : over == Over::mixed && r + 1 == world ? "far" : "near";
      groups[r] = std::make_shared<Group>(r, world, mine, hub);
    }
    if (hub == nullptr) connect();
    in_ranks(world, [&](std::uint32_t r) { load(r); });
  }

  Group& operator[](std::uint32_t rank) { return *groups[rank]; }
  std::uint32_t world() const { return static_cast<std::uint32_t>(groups.size()); }
  void run(const std::function<void(std::uint32_t)>& body) { in_ranks(world(), body); }

  std::vector<std::shared_ptr<Group>> groups;

 private:
  void connect() {
    std::vector<std::vector<std::byte>> addresses, reports(groups.size());
    for (const auto& group : groups) addresses.push_back(group->address());
    run([&](std::uint32_t r) { reports[r] = groups[r]->join(addresses, 30); });
    run([&](std::uint32_t r) { groups[r]->connect(reports, 30); });
    for (const auto& group : groups)
      if (!group->warning().empty()) fail(__FILE__, __LINE__, group->warning());
  }
  void load(std::uint32_t r) {
    Group& group = *groups[r];
    const std::uint32_t n = world();
    const std::uint32_t one_round = group.load_program(direct_all_reduce(n, r, true).bytes());
    const std::uint32_t large = group.load_program((n > 1 ? ring_all_reduce(n, r) : direct_all_reduce(n, r)).bytes());
    group.set_table(Collective::all_reduce, 0, false, {1024, ~std::uint64_t{0}}, {one_round, large});
    for (std::uint32_t root = 0; root < n; ++root)
      group.set_table(Collective::broadcast, root, false, {0}, {group.load_program(flat_broadcast(n, r, root, true).bytes())});
    group.set_table(Collective::all_gather, 0, false, {0}, {group.load_program(direct_all_gather(n, r, true).bytes())});
    group.set_table(Collective::all_gather, 0, true, {8, ~std::uint64_t{0}},
                    {group.load_program(direct_all_gather(n, r).bytes()), group.load_program(direct_all_gather(n, r).bytes())});
    group.set_table(Collective::all_to_all, 0, true, {0}, {group.load_program(direct_all_to_all(n, r).bytes())});
    group.set_table(Collective::barrier, 0, false, {0}, {group.load_program(flat_barrier(n, r).bytes())});
  }
};

using Numbers = std::vector<std::int32_t>;

inline Call call_of(Collective collective, const Numbers& input, Numbers& output, std::uint64_t count, std::uint32_t root = 0) {
  Call call;
  call.collective = collective;
  call.dtype = DType::int32;
  call.root = root;
  call.input = reinterpret_cast<const std::byte*>(input.data());
  call.output = reinterpret_cast<std::byte*>(output.data());
  call.count = count;
  return call;
}

inline std::shared_ptr<Op> start(Group& group, const Call& call) {
  auto op = std::make_shared<Op>();
  op->call = call;
  CHECK(group.prepare(*op));
  group.start(op);
  return op;
}

inline std::shared_ptr<Op> start_message(Group& group, Op::Kind kind, int peer, std::uint64_t tag, void* memory, std::size_t bytes) {
  auto op = std::make_shared<Op>();
  op->kind = kind;
  op->peer = peer;
  op->tag = tag;
  op->memory = static_cast<std::byte*>(memory);
  op->bytes = bytes;
  group.prepare(*op);
  group.start(op);
  return op;
}

inline void wait(Group& group, Op& op) {
  CHECK(group.wait(op, -1));
  if (op.state.load() == Op::State::failed) raise_failure(op, group.rank());
}

// As the Python binding does it: in the caller if nothing else is under way.
inline void run_now(Group& group, const Call& call) {
  Op op;
  op.call = call;
  CHECK(group.prepare(op));
  if (!group.run_now(op)) return wait(group, *start(group, call));
  if (op.state.load() == Op::State::failed) raise_failure(op, group.rank());
}

inline Numbers numbers(std::uint32_t rank, std::size_t count, std::int32_t salt = 0) {
  Numbers all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<std::int32_t>((rank + 1) * 1000 + i % 613) + salt;
  return all;
}

inline Numbers sum_of(std::uint32_t world, std::size_t count, std::int32_t salt = 0) {
  Numbers all(count);
  for (std::uint32_t r = 0; r < world; ++r) {
    const Numbers one = numbers(r, count, salt);
    for (std::size_t i = 0; i < count; ++i) all[i] += one[i];
  }
  return all;
}

inline void all_reduce_now(Group& group, std::size_t count, std::int32_t salt = 0) {
  const Numbers input = numbers(group.rank(), count, salt);
  Numbers output(count, -1);
  run_now(group, call_of(Collective::all_reduce, input, output, count));
  CHECK(output == sum_of(group.world(), count, salt));
}

}  // namespace hccl_py::testing
