// SPDX-License-Identifier: Apache-2.0
// One piece of work given to a group: a collective, a send or a receive.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "hccl_py/call.hpp"

namespace hccl_py {

class Executor;
class SlotCall;

struct Op {
  enum class Kind : std::uint8_t { collective, send, recv };
  enum class State : std::uint8_t { pending, done, failed };

  Kind kind = Kind::collective;
  std::atomic<State> state{State::pending};
  std::int64_t deadline_ns = 0;  // 0: not set yet
  std::unique_ptr<Failure> failure;  // once failed
  bool timed = false;          // started work: says when it was done
  std::int64_t ended_ns = 0;  // steady clock; valid once done

  // collective
  Call call;
  Executor* executor = nullptr;
  std::shared_ptr<SlotCall> slot_call;  // of a prepared op, if it goes by the board
  std::uint64_t sequence = 0;
  std::vector<std::uint64_t> counts;  // what call.input_counts and output_counts point to, for calls that outlive the caller

  // point to point
  int peer = -1;  // receive: -1 takes any
  std::uint64_t tag = 0;
  std::byte* memory = nullptr;  // a send only reads it
  std::uint64_t bytes = 0;
  std::uint64_t moved = 0;
  int source = -1;  // receive: who sent
  std::uint64_t wild = 0;      // receive: bits of the tag that may be anything
  bool shorter = false;        // receive: takes a shorter message, too
  std::uint64_t got_tag = 0;   // receive: the message's
  std::uint64_t got_bytes = 0; // receive: how long the message is

  // A receive that takes a message from `from` with this tag.
  bool takes(std::uint32_t from, std::uint64_t its_tag) const {
    return ((its_tag ^ tag) & ~wild) == 0 && (peer < 0 || static_cast<std::uint32_t>(peer) == from);
  }

  // Asks for what `other` asks for.
  void copy_request(const Op& other) {
    kind = other.kind;
    call = other.call;
    executor = other.executor;
    slot_call = other.slot_call;
    peer = other.peer;
    tag = other.tag;
    memory = other.memory;
    bytes = other.bytes;
    wild = other.wild;
    shorter = other.shorter;
  }

  bool pending() const { return state.load(std::memory_order_acquire) == State::pending; }
  void finish() {
    if (timed) ended_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
    state.store(State::done, std::memory_order_release);
  }
  void fail(Failure why) {
    failure = std::make_unique<Failure>(std::move(why));
    state.store(State::failed, std::memory_order_release);
  }
};

}  // namespace hccl_py
