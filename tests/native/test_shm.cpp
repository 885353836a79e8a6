// SPDX-License-Identifier: Apache-2.0
// The shared-memory transport: meeting at the door, rings, bells, and who is alive.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/segments.hpp"
#include "hccl_py/shm.hpp"
#include "hccl_py/socket.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr std::uint64_t kNonce = 0x1122334455667788;
constexpr std::int64_t kSecond_ns = 1'000'000'000;

std::int64_t in_seconds(std::int64_t s) { return monotonic_ns() + s * kSecond_ns; }

ShmOptions small() {
  ShmOptions options;
  options.ring_bytes = 4096;
  options.slot_bytes = 128;
  return options;
}

// The ranks of one host, as threads.
class Host {
 public:
  explicit Host(std::uint32_t n) : doors(n), bells(n), ranks(n) {
    for (std::uint32_t i = 0; i < n; ++i) {
      door_names.push_back(doors[i].name());
      bell_names.push_back(bells[i].name());
      numbers.push_back(static_cast<std::int32_t>(10 + i));
    }
  }
  void make(std::uint32_t i, const ShmOptions& options = small(), std::uint64_t nonce = kNonce, std::int64_t seconds = 20) {
    ranks[i] = std::make_unique<ShmHost>(doors[i], bells[i], door_names, bell_names, numbers, i, nonce, options, in_seconds(seconds));
  }
  void make_all(const ShmOptions& options = small()) {
    std::vector<std::exception_ptr> errors(ranks.size());
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          make(i, options);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  std::vector<ShmDoor> doors;
  std::vector<BellSocket> bells;
  std::vector<std::unique_ptr<ShmHost>> ranks;
  std::vector<std::string> door_names, bell_names;
  std::vector<std::int32_t> numbers;
};

template <class Error>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

void test_ranks_see_one_board() {
  Host host(3);
  host.make_all();
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Board& board = host.ranks[i]->board();
    CHECK_EQ(board.num_ranks(), 3u);
    CHECK_EQ(board.slot_bytes(), 128u);
    CHECK_EQ(board.rank(i).rank, host.numbers[i]);
    CHECK_EQ(board.rank(i).pid, static_cast<std::uint32_t>(getpid()));
    CHECK(aligned(&board.rank(i)) && aligned(board.rank(i).line) && aligned(&board.rank(i).sleeping) && aligned(&board.rank(i).closed));
    CHECK(aligned(board.slot(i, 0)) && aligned(board.slot(i, 1)) && aligned(&board.header().bad_news));
    std::memset(board.slot(i, 0), static_cast<int>(i + 1), 128);
    std::memset(board.slot(i, 1), static_cast<int>(i + 11), 128);
  }
  for (std::uint32_t i = 0; i < 3; ++i)
    for (std::uint32_t other = 0; other < 3; ++other) {
      const Board& board = host.ranks[i]->board();
      CHECK_EQ(board.rank(other).rank, host.numbers[other]);
      for (std::size_t k : {0, 127}) {
        CHECK_EQ(static_cast<std::uint32_t>(board.slot(other, 4)[k]), other + 1);
        CHECK_EQ(static_cast<std::uint32_t>(board.slot(other, 7)[k]), other + 11);
      }
    }
}

void test_rings_wrap_around() {
  Host host(2);
  host.make_all();
  SendPipe& send = host.ranks[0]->send_pipe(1, 1);
  RecvPipe& recv = host.ranks[1]->recv_pipe(0, 1);
  CHECK(recv.peek(1).empty());
  std::uint8_t next_in = 0, next_out = 0;
  for (int round = 0; round < 50; ++round) {
    // A little less than a ring each time: every position of the ring is crossed in one piece.
    const std::span<std::byte> room = send.reserve(3001);
    CHECK_EQ(room.size(), 3001u);
    for (std::byte& b : room) b = static_cast<std::byte>(next_in++);
    send.commit(3001);
    const std::span<const std::byte> in = recv.peek(5000);
    CHECK_EQ(in.size(), 3001u);
    for (const std::byte b : in) CHECK_EQ(static_cast<unsigned>(b), static_cast<unsigned>(next_out++));
    recv.consume(3001);
  }
  // Nothing went the other way, or by the other channel.
  CHECK(host.ranks[1]->recv_pipe(0, 0).peek(1).empty() && host.ranks[0]->recv_pipe(1, 1).peek(1).empty());
}

void test_full_rings_take_no_more() {
  Host host(2);
  host.make_all();
  SendPipe& send = host.ranks[0]->send_pipe(1, 0);
  RecvPipe& recv = host.ranks[1]->recv_pipe(0, 0);
  const std::vector<std::byte> block(5000);
  CHECK_EQ(send.write(std::span(block).first(100), block, false), 4096u);
  CHECK_EQ(send.write(block, {}, false), 0u);
  CHECK(send.reserve(1).empty());
  CHECK_EQ(recv.peek(10).size(), 10u);
  recv.consume(10);
  CHECK_EQ(send.write(std::span(block).first(8), block, false), 10u);
  CHECK_EQ(recv.peek(5000).size(), 4096u);
  CHECK(recv.peek(5000, 4097).empty());
  std::vector<std::byte> out(5000);
  CHECK_EQ(recv.read(out), 4096u);
  CHECK_EQ(recv.read(out), 0u);
  CHECK_EQ(send.reserve(5000).size(), 4096u);
}

void test_headers_come_whole() {
  Host host(2);
  host.make_all();
  SendPipe& send = host.ranks[0]->send_pipe(1, 0);
  RecvPipe& recv = host.ranks[1]->recv_pipe(0, 0);
  send.write(bytes_of("half"), {}, false);
  CHECK(recv.peek(8, 8).empty());
  send.write(bytes_of("whole"), {}, false);
  CHECK_EQ(recv.peek(8, 8).size(), 8u);
  CHECK_EQ(recv.peek(100, 8).size(), 9u);
}

// 64 MiB in pieces of random sizes by every way of writing and reading.
void test_two_threads_stream() {
  constexpr std::size_t kTotal = std::size_t{64} << 20;
  Host host(2);
  ShmOptions options;
  options.ring_bytes = 16 * 1024;
  host.make_all(options);
  std::vector<std::byte> pattern((1 << 16) + 40000);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>((i & 0xffff) * 2654435761u >> 13);
  const auto expected = [&](std::size_t at, std::size_t n) { return std::span<const std::byte>(pattern).subspan(at & 0xffff, n); };
  std::thread writer([&] {
    SendPipe& send = host.ranks[0]->send_pipe(1, 0);
    std::mt19937 random(1);
    for (std::size_t at = 0; at < kTotal;) {
      const std::size_t want = std::min<std::size_t>(kTotal - at, random() % 40000 + 1);
      std::size_t n;
      if (random() % 2 == 0) {
        const std::span<std::byte> room = send.reserve(want);
        std::memcpy(room.data(), expected(at, room.size()).data(), room.size());
        n = room.size();
        if (n != 0) send.commit(n);
      } else {
        const std::size_t head = std::min<std::size_t>(want, random() % 100);
        n = send.write(expected(at, head), expected(at + head, want - head), false);
      }
      at += n;
      if (n == 0) std::this_thread::yield();
    }
  });
  RecvPipe& recv = host.ranks[1]->recv_pipe(0, 0);
  std::mt19937 random(2);
  std::vector<std::byte> out(40000);
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < kTotal;) {
    const std::size_t want = std::min<std::size_t>(kTotal - at, random() % 40000 + 1);
    std::size_t n;
    if (random() % 2 == 0) {
      const std::span<const std::byte> in = recv.peek(want, std::min<std::size_t>(want, 1 + random() % 128));
      n = in.size();
      wrong += n != 0 && std::memcmp(in.data(), expected(at, n).data(), n) != 0;
      if (n != 0) recv.consume(n);
    } else {
      n = recv.read(std::span(out).first(want));
      wrong += n != 0 && std::memcmp(out.data(), expected(at, n).data(), n) != 0;
    }
    at += n;
    if (n == 0) std::this_thread::yield();
  }
  writer.join();
  CHECK_EQ(wrong, 0u);
}

// Messages by ring, lent from private and from shared memory, and landed, in random order on one channel.
void test_loans_among_other_messages() {
  Host host(2);
  ShmOptions options;
  options.ring_bytes = 16 * 1024;
  options.piece_bytes = 8 * 1024;
  host.make_all(options);
  CHECK_EQ(host.ranks[0]->probe_peers(), "");
  CHECK_EQ(host.ranks[1]->probe_peers(), "");
  SendPipe& send = host.ranks[0]->send_pipe(1, 0);
  RecvPipe& recv = host.ranks[1]->recv_pipe(0, 0);
  CHECK(send.lends(true) && send.lends(false));
  constexpr std::size_t kBytes = 100'000;
  const auto segment = Segment::allocate(kBytes);
  CHECK(host.ranks[0]->announce(1, segment->fd()));
  std::vector<std::byte> mine(kBytes), landing(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) mine[i] = segment->data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  struct Message {
    int way;  // 0 ring, 1 private, 2 shared, 3 landed
    std::size_t at, bytes;
  };
  std::vector<Message> messages;
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const std::size_t at = random() % kBytes;
    messages.push_back({static_cast<int>(random() % 4), at, 1 + random() % (kBytes - at)});
  }
  std::thread writer([&] {
    for (const Message& m : messages) {
      if (m.way == 0) {
        for (std::size_t done = 0; done < m.bytes;) {
          const std::size_t n = send.write({}, std::span(mine).subspan(m.at + done, m.bytes - done), false);
          done += n;
          if (n == 0) std::this_thread::yield();
        }
        continue;
      }
      const std::uint64_t base = send.open_loan(m.bytes);
      for (std::size_t done = 0; done < m.bytes;) {
        const std::size_t n = std::min<std::size_t>(m.bytes - done, 5000);
        if (m.way == 3) std::memcpy(landing.data() + m.at + done, mine.data() + m.at + done, n);
        done += n;
        send.offer(base + done);
      }
      send.flush();
      while (send.taken() < base + m.bytes) std::this_thread::yield();
    }
  });
  std::vector<std::byte> out(kBytes);
  std::size_t wrong = 0;
  for (const Message& m : messages) {
    const auto* expected = mine.data() + m.at;
    if (m.way != 0) {
      const std::uint64_t at = m.way == 1 ? reinterpret_cast<std::uintptr_t>(expected) : m.at;
      CHECK(recv.borrow({m.way == 3 ? Loan::Kind::landed : Loan::Kind::lent, m.way == 2 ? 1u : 0u, at, m.bytes}));
    }
    for (std::size_t done = 0; done < m.bytes;) {
      std::size_t n;
      if (m.way == 3) {
        n = recv.arrived();
        wrong += n != 0 && std::memcmp(landing.data() + m.at + done, expected + done, n) != 0;
        if (n != 0) recv.consume(n);
      } else if (random() % 2 == 0) {
        const std::span<const std::byte> in = recv.peek(std::min<std::size_t>(m.bytes - done, 1 + random() % 6000));
        n = in.size();
        wrong += n != 0 && std::memcmp(in.data(), expected + done, n) != 0;
        if (n != 0) recv.consume(n);
      } else {
        n = recv.read(std::span(out).first(std::min<std::size_t>(m.bytes - done, 20'000)));
        wrong += n != 0 && std::memcmp(out.data(), expected + done, n) != 0;
      }
      done += n;
      if (n == 0) std::this_thread::yield();
    }
  }
  writer.join();
  CHECK_EQ(wrong, 0u);
}

void test_loans_that_cannot_be_had() {
  Host host(2);
  host.make_all();
  RecvPipe& recv = host.ranks[1]->recv_pipe(0, 0);
  CHECK(!host.ranks[0]->send_pipe(1, 0).lends(false));  // nobody has tried yet
  const auto segment = Segment::allocate(5000);
  CHECK(!recv.borrow({Loan::Kind::lent, 7, 0, 10}));  // never announced
  CHECK(host.ranks[0]->announce(7, segment->fd()));
  CHECK(recv.borrow({Loan::Kind::lent, 7, 0, 8192}));
  CHECK(!recv.borrow({Loan::Kind::lent, 7, 8000, 193}));
  CHECK(!recv.borrow({Loan::Kind::lent, 7, 9000, 1}));
  CHECK(!recv.borrow({Loan::Kind::lent, 7, ~std::uint64_t{0}, 2}));
  // An address that holds nothing: the peer counts as lost.
  SendPipe& send = host.ranks[0]->send_pipe(1, 0);
  send.offer(send.open_loan(100) + 100);
  CHECK(recv.borrow({Loan::Kind::lent, 0, 64, 100}));
  CHECK(recv.peek(100).empty());
  CHECK(recv.state() == PipeState::failed);
}

void test_a_wrong_probe_closes_private_memory() {
  Host host(3);
  host.make_all();
  host.ranks[0]->board().rank(1).probe ^= 1;
  host.ranks[0]->board().rank(2).probe_at = 64;
  const std::string why = host.ranks[0]->probe_peers();
  CHECK(why.find("rank 12 cannot be read") != std::string::npos);
  CHECK(!host.ranks[1]->send_pipe(0, 0).lends(false) && !host.ranks[2]->send_pipe(0, 0).lends(false));
  CHECK(host.ranks[1]->send_pipe(0, 0).lends(true));
}

void test_segments_come_and_go() {
  Host host(2);
  host.make_all();
  OwnSegments own;
  PeerSegments& peers = host.ranks[1]->segments();
  const auto announce = [&](std::uint32_t number, int fd) { return host.ranks[0]->announce(number, fd); };
  CHECK(!own.any());
  auto segment = Segment::allocate(10'000);
  own.add(segment);
  CHECK(own.any());
  CHECK_EQ(segment->bytes(), 3 * Segment::kPage);
  std::byte elsewhere{};
  CHECK_EQ(own.find(&elsewhere, 1, announce).segment, 0u);
  CHECK_EQ(own.find(segment->data() + 10, segment->bytes(), announce).segment, 0u);  // not all of it
  CHECK_EQ(own.find(segment->data() + 10, 10, [](std::uint32_t, int) { return false; }).segment, 0u);
  const SharedPlace place = own.find(segment->data() + 10, 10, announce);
  CHECK(place.segment != 0 && place.offset == 10);
  std::size_t bytes = 0;
  std::byte* there = peers.find(0, place.segment, bytes);
  CHECK(there != nullptr && bytes == segment->bytes());
  CHECK(peers.find(1, place.segment, bytes) == nullptr);
  segment->data()[12] = std::byte{77};
  CHECK(there[12] == std::byte{77});
  peers.forget_gone();
  CHECK(peers.find(0, place.segment, bytes) == there);
  segment.reset();
  CHECK(there[12] == std::byte{0});  // the pages went back at once
  peers.forget_gone();
  CHECK(peers.find(0, place.segment, bytes) == nullptr);
}

void test_adopted_memory_keeps_its_contents() {
  constexpr std::size_t kBytes = 5 * Segment::kPage;
  void* room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(room != MAP_FAILED);
  Mapping mapping(room, kBytes);
  std::byte* memory = mapping.get();
  for (std::size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<std::byte>(i % 251);
  const auto intact = [&] {
    for (std::size_t i = 0; i < kBytes; ++i)
      if (memory[i] != static_cast<std::byte>(i % 251)) return false;
    return true;
  };
  {
    const auto segment = Segment::adopt(memory + Segment::kPage + 100, 2 * Segment::kPage);
    CHECK(segment->data() == memory + Segment::kPage && segment->bytes() == 3 * Segment::kPage);
    CHECK(segment->holds(memory + Segment::kPage + 100, 2 * Segment::kPage));
    CHECK(intact());
    CHECK(message_of<ConfigError>([&] { Segment::adopt(memory, kBytes); }).find("shared already") != std::string::npos);
  }
  CHECK(intact());
  CHECK(!message_of<ConfigError>([&] { Segment::adopt(memory, 0); }).empty());
  CHECK(mprotect(memory, Segment::kPage, PROT_READ) == 0);
  CHECK(!message_of<ConfigError>([&] { Segment::adopt(memory, kBytes); }).empty());
  CHECK(message_of<ConfigError>([] { Segment::allocate(std::size_t{1} << 60); }).find("shared memory of") != std::string::npos);
}

void test_bells_ring_across_mappings() {
  Host host(2);
  host.make_all();
  BoardRank& sleeper = host.ranks[1]->board().rank(1);
  const std::uint32_t seen = sleeper.bell.load();
  sleeper.sleeping.store(static_cast<std::uint32_t>(Sleeping::on_futex));
  std::thread writer([&] { host.ranks[0]->send_pipe(1, 0).write(bytes_of("x"), {}, false); });
  while (sleeper.bell.load() == seen) futex_wait(sleeper.bell, seen, 60 * kSecond_ns);
  writer.join();
  BoardRank& full = host.ranks[0]->board().rank(0);
  full.sleeping.store(static_cast<std::uint32_t>(Sleeping::on_socket));
  std::thread reader([&] { host.ranks[1]->recv_pipe(0, 0).consume(1); });
  pollfd p{host.bells[0].fd(), POLLIN, 0};
  CHECK_EQ(poll(&p, 1, 60'000), 1);
  reader.join();
}

void test_alive_until_gone() {
  Host host(3);
  host.make_all();
  CHECK(host.ranks[0]->alive(0) && host.ranks[0]->alive(1) && host.ranks[0]->alive(2) && host.ranks[2]->alive(0));
  host.ranks[1].reset();
  CHECK(host.ranks[0]->alive(0) && !host.ranks[0]->alive(1) && host.ranks[0]->alive(2));
  host.ranks[0].reset();
  CHECK(!host.ranks[2]->alive(0) && host.ranks[2]->alive(2));
}

// A process that is killed says nothing: the kernel does.
void test_a_killed_process_is_not_alive() {
  Host host(2);
  const pid_t child = fork();
  if (child == 0) {
    try {
      host.make(1);
      host.ranks[1]->send_pipe(0, 0).write(bytes_of("!"), {}, false);
      for (;;) pause();
    } catch (...) {
      _exit(1);
    }
  }
  CHECK(child > 0);
  host.make(0);
  CHECK(host.ranks[0]->alive(1));
  while (host.ranks[0]->recv_pipe(1, 0).peek(1).empty()) std::this_thread::yield();
  CHECK_EQ(host.ranks[0]->board().rank(1).pid, static_cast<std::uint32_t>(child));
  kill(child, SIGKILL);
  CHECK_EQ(waitpid(child, nullptr, 0), child);
  CHECK(!host.ranks[0]->alive(1));
}

Fd knock(const std::string& door) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(door, address);
  CHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  return fd;
}

// What comes back at the end of a connection, descriptors included: bytes, or -1 for a descriptor.
std::ptrdiff_t answer_of(const Fd& fd) {
  std::uint64_t body = 0;
  Fd passed;
  const ssize_t n = receive_with_fd(fd.get(), std::as_writable_bytes(std::span(&body, 1)), passed, 0);
  return passed ? -1 : std::max<ssize_t>(n, 0);
}

// Names of doors can be seen by every process of the machine.
void test_strangers_get_nothing_and_delay_nobody() {
  Host host(3);
  knock(host.door_names[0]);  // hangs up at once
  const Fd silent = knock(host.door_names[0]);
  const Fd liar = knock(host.door_names[0]);
  const std::uint64_t guess = kNonce + 1;
  CHECK_EQ(send(liar.get(), &guess, sizeof guess, MSG_NOSIGNAL), 8);
  const Fd brief = knock(host.door_names[0]);
  CHECK_EQ(send(brief.get(), &guess, 3, MSG_NOSIGNAL), 3);
  std::vector<Fd> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(knock(host.door_names[0]));
  const std::int64_t began = monotonic_ns();
  host.make_all();
  CHECK(monotonic_ns() - began < 15 * kSecond_ns);
  CHECK_EQ(answer_of(liar), 0);
  CHECK_EQ(answer_of(brief), 0);
  CHECK_EQ(answer_of(silent), 0);
}

void test_nobody_comes() {
  Host host(3);
  const std::string text = message_of<CollectiveTimeoutError>([&] { host.make(0, small(), kNonce, 0); });
  CHECK(text.find("2 of 3") != std::string::npos);
  CHECK(!message_of<CollectiveTimeoutError>([&] { host.make(1, small(), kNonce, 0); }).empty());
  host.doors[0] = ShmDoor();
  CHECK(message_of<TransportUnavailableError>([&] { host.make(1); }).find("first rank") != std::string::npos);
}

void test_ranks_of_other_jobs_and_settings_are_refused() {
  {
    Host host(2);
    std::string refusal;
    std::thread other([&] { refusal = message_of<TransportUnavailableError>([&] { host.make(1, small(), kNonce + 1); }); });
    CHECK(!message_of<CollectiveTimeoutError>([&] { host.make(0, small(), kNonce, 1); }).empty());
    other.join();
    CHECK(!refusal.empty());
  }
  for (const bool slots : {false, true}) {
    Host host(2);
    ShmOptions different = small();
    if (slots)
      different.slot_bytes *= 2;
    else
      different.channels = 40;
    std::string refusal;
    std::thread other([&] { refusal = message_of<ConfigError>([&] { host.make(1, different); }); });
    CHECK(message_of<TransportUnavailableError>([&] { host.make(0); }).find("could not map") != std::string::npos);
    other.join();
    CHECK(!refusal.empty());
  }
}

void test_wrong_options_are_refused() {
  Host host(2);
  for (const std::uint32_t ring : {0u, 2048u, 5000u, 12288u}) {
    ShmOptions options = small();
    options.ring_bytes = ring;
    CHECK(message_of<ConfigError>([&] { host.make(0, options); }).find("ring_bytes") != std::string::npos);
  }
  ShmOptions options = small();
  options.slot_bytes = 100;
  CHECK(message_of<ConfigError>([&] { host.make(0, options); }).find("slot_bytes") != std::string::npos);
}

}  // namespace

int main() {
  return run_tests({
      {"ranks see one board", test_ranks_see_one_board},
      {"rings wrap around", test_rings_wrap_around},
      {"full rings take no more", test_full_rings_take_no_more},
      {"headers come whole", test_headers_come_whole},
      {"two threads stream", test_two_threads_stream},
      {"loans among other messages", test_loans_among_other_messages},
      {"loans that cannot be had", test_loans_that_cannot_be_had},
      {"a wrong probe closes private memory", test_a_wrong_probe_closes_private_memory},
      {"segments come and go", test_segments_come_and_go},
      {"adopted memory keeps its contents", test_adopted_memory_keeps_its_contents},
      {"bells ring across mappings", test_bells_ring_across_mappings},
      {"alive until gone", test_alive_until_gone},
      {"a killed process is not alive", test_a_killed_process_is_not_alive},
      {"strangers get nothing and delay nobody", test_strangers_get_nothing_and_delay_nobody},
      {"nobody comes", test_nobody_comes},
      {"ranks of other jobs and settings are refused", test_ranks_of_other_jobs_and_settings_are_refused},
      {"wrong options are refused", test_wrong_options_are_refused},
  });
}
