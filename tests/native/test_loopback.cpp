// SPDX-License-Identifier: Apache-2.0
// The loopback transport: pipes within the process, and how a sleeping rank is woken.
#include <poll.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/loopback.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

void test_pipes_are_fifo() {
  Hub hub(3);
  SendPipe& send = hub.send_pipe(0, 2, 1);
  RecvPipe& recv = hub.recv_pipe(0, 2, 1);
  CHECK(recv.peek(10).empty());
  CHECK_EQ(send.write(bytes_of("head"), bytes_of("body"), false), 8u);
  CHECK(recv.peek(20, 9).empty());
  CHECK_EQ(text_of(recv.peek(20, 8)), "headbody");
  CHECK_EQ(text_of(recv.peek(5)), "headb");
  recv.consume(5);
  std::span<std::byte> room = send.reserve(3);
  CHECK_EQ(room.size(), 3u);
  std::memcpy(room.data(), "xyz", 3);
  send.commit(2);  // less than was reserved
  char out[10] = {};
  CHECK_EQ(recv.read(std::as_writable_bytes(std::span(out))), 5u);
  CHECK_EQ(std::string(out), "odyxy");
  CHECK(send.state() == PipeState::open && recv.state() == PipeState::open);
  CHECK(send.flush());
  // Neither another channel nor another direction nor another pair.
  CHECK(hub.recv_pipe(0, 2, 0).peek(1).empty() && hub.recv_pipe(2, 0, 1).peek(1).empty() && hub.recv_pipe(0, 1, 1).peek(1).empty());
}

void test_a_full_pipe_takes_no_more() {
  Hub hub(2);
  SendPipe& send = hub.send_pipe(0, 1, 0);
  RecvPipe& recv = hub.recv_pipe(0, 1, 0);
  const std::vector<std::byte> block(10'000);
  std::size_t total = 0;
  while (const std::size_t n = send.write({}, block, false)) total += n;
  CHECK(total >= 32 * 1024);  // at least one segment
  CHECK(send.reserve(1).empty());
  recv.consume(7);
  CHECK_EQ(send.reserve(100).size(), 7u);
  CHECK_EQ(send.write(std::span(block).first(5), block, false), 7u);
}

void test_two_threads_stream() {
  Hub hub(2);
  std::vector<std::byte> sent(1 << 20), received(1 << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::thread writer([&] {
    std::size_t at = 0;
    for (std::size_t k = 1; at < sent.size(); ++k) {
      const std::size_t want = std::min(sent.size() - at, k * 37 % 5000 + 1);
      const std::size_t n = hub.send_pipe(0, 1, 0).write({}, std::span(sent).subspan(at, want), false);
      at += n;
      if (n == 0) std::this_thread::yield();
    }
  });
  std::size_t at = 0;
  for (std::size_t k = 1; at < received.size(); ++k) {
    const std::size_t want = std::min(received.size() - at, k * 53 % 7000 + 1);
    const std::size_t n = hub.recv_pipe(0, 1, 0).read(std::span(received).subspan(at, want));
    at += n;
    if (n == 0) std::this_thread::yield();
  }
  writer.join();
  CHECK(sent == received);
}

// Ranks that sleep on the futex word and in poll(): both hear of bytes and of room.
void test_bells_wake_sleepers() {
  Hub hub(2);
  const auto sleep_on_futex = [&](std::uint32_t rank, auto&& publish) {
    BoardRank& me = hub.board().rank(rank);
    const std::uint32_t seen = me.bell.load();
    me.sleeping.store(static_cast<std::uint32_t>(Sleeping::on_futex));
    std::thread other(publish);
    while (me.bell.load() == seen) futex_wait(me.bell, seen, 60'000'000'000);
    other.join();
    CHECK_EQ(me.sleeping.load(), 0u);
  };
  const auto sleep_in_poll = [&](std::uint32_t rank, auto&& publish) {
    hub.board().rank(rank).sleeping.store(static_cast<std::uint32_t>(Sleeping::on_socket));
    std::thread other(publish);
    pollfd p{hub.bell(rank).fd(), POLLIN, 0};
    CHECK_EQ(poll(&p, 1, 60'000), 1);
    other.join();
    hub.bell(rank).drain();
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_EQ(hub.board().rank(rank).sleeping.load(), 0u);
  };
  sleep_on_futex(1, [&] { hub.send_pipe(0, 1, 0).write(bytes_of("x"), {}, false); });
  sleep_in_poll(1, [&] { hub.send_pipe(0, 1, 0).write(bytes_of("y"), {}, false); });
  sleep_on_futex(0, [&] { hub.recv_pipe(0, 1, 0).consume(1); });
  sleep_in_poll(0, [&] { hub.recv_pipe(0, 1, 0).consume(1); });
  // Nobody rings where nobody sleeps.
  const std::uint32_t before = hub.board().rank(1).bell.load();
  hub.bells().ring_all();
  CHECK_EQ(hub.board().rank(1).bell.load(), before);
}

void test_empty_hubs_are_refused() {
  for (const auto& [world, channels] : {std::pair{0u, 3u}, std::pair{2u, 0u}}) {
    bool refused = false;
    try {
      Hub hub(world, 64, channels);
    } catch (const ConfigError&) {
      refused = true;
    }
    CHECK(refused);
  }
}

}  // namespace

int main() {
  return run_tests({
      {"pipes are first in, first out", test_pipes_are_fifo},
      {"a full pipe takes no more", test_a_full_pipe_takes_no_more},
      {"two threads stream", test_two_threads_stream},
      {"bells wake sleepers", test_bells_wake_sleepers},
      {"empty hubs are refused", test_empty_hubs_are_refused},
  });
}
