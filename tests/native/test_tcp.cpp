// SPDX-License-Identifier: Apache-2.0
// TCP pipes and the poller, on real sockets over loopback: every byte arrives once and in order through any mixture of
// calls, no readiness is lost, and the ends of a connection are told apart.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <linux/sockios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "check.hpp"
#include "hccl_py/tcp.hpp"

namespace {

using namespace hccl_py;
using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kPatience = 20s;

// Two connected sockets over 127.0.0.1.
std::pair<Fd, Fd> connected_sockets(int send_buffer_bytes = 0) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address;
  socklen_t length = Endpoint{*IpAddress::parse("127.0.0.1"), 0}.to(address);
  CHECK(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  CHECK(::listen(listener.get(), 1) == 0);
  length = local_endpoint(listener.get()).to(address);
  Fd near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (send_buffer_bytes > 0) {
    CHECK(::setsockopt(near.get(), SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes) == 0);
  }
  CHECK(::connect(near.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  Fd far(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(far);
  const int on = 1;
  for (const int fd : {near.get(), far.get()}) {
    CHECK(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  }
  return {std::move(near), std::move(far)};
}

// A connection with its own poller.
struct End {
  explicit End(Fd fd, int peer = 1) : connection(std::move(fd), peer, 0) { connection.watch(poller); }
  SendPipe& sender() { return connection.sender(); }
  RecvPipe& receiver() { return connection.receiver(); }
  // Waits for news; there must be some.
  void wait() { CHECK(poller.poll(kPatience) > 0); }

  Poller poller;
  TcpConnection connection;
};

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// An endless stream of known bytes: a random block, repeated; its length is no power of two, so that shifts show.
class Stream {
 public:
  explicit Stream(unsigned seed) : block_(random_bytes(1'000'003, seed)) {}
  // At most `size` bytes that follow `position`.
  std::span<const std::byte> at(std::size_t position, std::size_t size) const {
    const std::size_t begin = position % block_.size();
    return {block_.data() + begin, std::min(size, block_.size() - begin)};
  }
  bool matches(std::size_t position, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const auto wanted = at(position, bytes.size());
      if (!std::equal(wanted.begin(), wanted.end(), bytes.begin())) return false;
      position += wanted.size();
      bytes = bytes.subspan(wanted.size());
    }
    return true;
  }

 private:
  std::vector<std::byte> block_;
};

// Sizes from 1 byte to `most`, each order of magnitude alike.
std::size_t some_size(std::mt19937& random, std::size_t most) {
  const int bits = std::uniform_int_distribution<int>(0, 20)(random);
  return std::min<std::size_t>(most, 1 + random() % (std::size_t{1} << bits));
}

// One call on the sending pipe; returns the bytes it took.
std::size_t send_some(SendPipe& pipe, const Stream& stream, std::size_t position, std::size_t left,
                      std::mt19937& random) {
  if (random() % 3 == 0) {
    const std::size_t want = some_size(random, left);
    const auto room = pipe.reserve(want);
    CHECK(room.size() <= want);
    CHECK(room.empty() || room.size() >= std::min<std::size_t>(want, 64));
    const auto bytes = stream.at(position, room.size());
    std::copy(bytes.begin(), bytes.end(), room.begin());
    if (!room.empty()) pipe.commit(bytes.size());
    return bytes.size();
  }
  const auto head = stream.at(position, random() % 2 == 0 ? 0 : std::min<std::size_t>(left, 1 + random() % 128));
  const std::size_t rest = left - head.size();
  const auto body = stream.at(position + head.size(), rest == 0 ? 0 : some_size(random, rest));
  const std::size_t taken = pipe.write(head, body, random() % 2 == 0);
  CHECK(taken <= head.size() + body.size());
  return taken;
}

// One call on the receiving pipe; returns the bytes it gave, which are compared.
std::size_t receive_some(RecvPipe& pipe, const Stream& stream, std::size_t position, std::size_t left,
                         std::vector<std::byte>& out, std::mt19937& random) {
  const std::size_t want = some_size(random, left);
  if (random() % 2 == 0) {
    const std::size_t got = pipe.read(std::span(out).first(std::min(want, out.size())));
    CHECK(stream.matches(position, std::span(out).first(got)));
    return got;
  }
  const std::size_t at_least = std::min<std::size_t>(want, 1 + random() % 128);
  const auto bytes = pipe.peek(want, at_least);
  CHECK(bytes.size() <= want);
  CHECK(stream.matches(position, bytes));
  if (bytes.empty()) return 0;
  CHECK(bytes.size() >= at_least);
  const std::size_t used = 1 + random() % bytes.size();
  pipe.consume(used);
  return used;
}

// Sends `total` bytes of `ours` and receives as many of `theirs`. Sleeps only when a call found nothing to do, so that
// a lost edge ends in a time-out.
void exchange(End& end, const Stream& ours, const Stream& theirs, std::size_t total, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(1 << 20);
  std::size_t sent = 0, received = 0;
  while (sent < total || received < total || !end.sender().flush()) {
    bool progress = false;
    for (int i = 0; i < 4 && sent < total; ++i) {
      const std::size_t taken = send_some(end.sender(), ours, sent, total - sent, random);
      sent += taken;
      progress |= taken > 0;
    }
    if (random() % 8 == 0) end.sender().flush();
    for (int i = 0; i < 4 && received < total; ++i) {
      const std::size_t got = receive_some(end.receiver(), theirs, received, total - received, out, random);
      received += got;
      progress |= got > 0;
    }
    CHECK(end.sender().state() == PipeState::open && end.receiver().state() == PipeState::open);
    const bool all_sent = end.sender().flush() && sent == total;
    if (progress || (all_sent && received == total)) continue;
    const Readiness& readiness = end.connection.readiness();
    CHECK(received == total || !readiness.readable);
    CHECK(all_sent || !readiness.writable);
    end.wait();
  }
}

void exchange_both_ways(std::size_t total, unsigned seed, int send_buffer_bytes = 0) {
  auto [near_fd, far_fd] = connected_sockets(send_buffer_bytes);
  End near(std::move(near_fd)), far(std::move(far_fd));
  const Stream there(seed), back(seed + 1);
  auto other = std::async(std::launch::async, [&] { exchange(far, back, there, total, seed + 2); });
  exchange(near, there, back, total, seed + 3);
  other.get();
  CHECK(near.connection.failure().empty() && far.connection.failure().empty());
}

#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kLargeExchange = 8 << 20;  // the thread sanitizer is slow, and the order of things is the same
#else
constexpr std::size_t kLargeExchange = 64 << 20;
#endif

void test_64_mib_both_ways_through_all_calls() { exchange_both_ways(kLargeExchange, 1); }

void test_small_socket_buffer() { exchange_both_ways(1 << 20, 2, 32768); }

void test_signals_interrupt_nothing() {
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {};
  CHECK(sigaction(SIGALRM, &action, &before) == 0);  // without SA_RESTART
  const itimerval often{{0, 500}, {0, 500}}, never{};
  CHECK(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  {
    auto [near_fd, far_fd] = connected_sockets();
    Poller near_poller, far_poller;
    TcpConnection near(std::move(near_fd), 1, 0), far(std::move(far_fd), 0, 0);
    near.watch(near_poller);
    far.watch(far_poller);
    const Stream stream(3);
    constexpr std::size_t total = 16 << 20;
    auto other = std::async(std::launch::async, [&] {
      for (std::size_t sent = 0; sent < total;) {
        const std::size_t taken = near.sender().write({}, stream.at(sent, total - sent), false);
        CHECK(near.sender().state() == PipeState::open);
        if (taken == 0) near_poller.poll(kPatience);  // a signal may end the wait: no news, and no error
        sent += taken;
      }
    });
    std::vector<std::byte> out(1 << 20);
    for (std::size_t received = 0; received < total;) {
      const std::size_t got = far.receiver().read(std::span(out).first(std::min(out.size(), total - received)));
      CHECK(far.receiver().state() == PipeState::open && stream.matches(received, std::span(out).first(got)));
      if (got == 0) far_poller.poll(kPatience);
      received += got;
    }
    other.get();
  }
  CHECK(setitimer(ITIMER_REAL, &never, nullptr) == 0);
  CHECK(sigaction(SIGALRM, &before, nullptr) == 0);
}

void test_works_without_a_poller() {
  auto [near_fd, far_fd] = connected_sockets();
  TcpConnection near(std::move(near_fd), 1, 0), far(std::move(far_fd), 0, 0);
  const auto bytes = random_bytes(1000, 4);
  CHECK(far.receiver().peek(10).empty());  // found nothing, and looks again
  CHECK(near.sender().write(bytes, {}, false) == bytes.size());
  std::span<const std::byte> got;
  while ((got = far.receiver().peek(1000)).size() < bytes.size()) std::this_thread::yield();
  CHECK(std::equal(got.begin(), got.end(), bytes.begin(), bytes.end()));
}

void test_header_is_contiguous_wherever_it_lies() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  const Stream stream(5);
  // Headers of 128 bytes between bodies whose sizes walk them over the end of any buffer.
  std::size_t sent = 0, received = 0;
  for (std::size_t body = 100'000; body < 100'600; body += 7) {
    std::size_t left = 128 + body;
    while (left > 0) {
      const std::size_t taken = near.sender().write({}, stream.at(sent, left), false);
      sent += taken;
      left -= taken;
      if (taken == 0) near.wait();
      for (;;) {
        const auto bytes = far.receiver().peek(70'000, 128);
        CHECK(stream.matches(received, bytes));
        if (bytes.empty()) break;
        CHECK(bytes.size() >= 128);
        far.receiver().consume(bytes.size() - bytes.size() % 3);
        received += bytes.size() - bytes.size() % 3;
      }
      far.poller.poll(0ns);
    }
  }
  while (received < sent) {
    const std::size_t wanted = std::min<std::size_t>(128, sent - received);
    const auto bytes = far.receiver().peek(wanted, wanted);
    if (bytes.empty()) {
      far.wait();
      continue;
    }
    CHECK(stream.matches(received, bytes));
    far.receiver().consume(wanted);
    received += wanted;
  }
}

void test_large_read_does_not_pass_through_the_buffer() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  const Stream stream(6);
  std::size_t sent = 0;
  while (sent < 220'000) {
    const std::size_t taken = near.sender().write({}, stream.at(sent, 220'000 - sent), false);
    CHECK(taken > 0);
    sent += taken;
  }
  std::vector<std::byte> out(200'000);
  std::size_t received = 0;
  while (received < out.size()) {
    const std::size_t got = far.receiver().read(std::span(out).subspan(received));
    received += got;
    if (got == 0) far.wait();
  }
  CHECK(stream.matches(0, out));
  // What read() did not ask for is still in the kernel.
  int in_kernel = 0;
  while (in_kernel < 20'000) {
    CHECK(::ioctl(far.connection.fd(), SIOCINQ, &in_kernel) == 0);
    std::this_thread::yield();
  }
  CHECK(in_kernel == 20'000);
}

int unsent_bytes(const TcpConnection& connection) {
  int bytes = -1;
  CHECK(::ioctl(connection.fd(), SIOCOUTQNSD, &bytes) == 0);
  return bytes;
}

void test_more_holds_back_and_flush_sends() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  const auto bytes = random_bytes(9'001, 7);
  const std::span<const std::byte> all(bytes);
  // The first is small and staged here; with the second it is less than a segment, which the kernel holds back.
  CHECK(near.sender().write(all.first(100), all.subspan(100, 900), true) == 1000);
  CHECK(unsent_bytes(near.connection) == 0);
  CHECK(near.sender().write({}, all.subspan(1000), true) == bytes.size() - 1000);
  CHECK(unsent_bytes(near.connection) > 0);
  CHECK(near.sender().flush());
  CHECK(unsent_bytes(near.connection) == 0);
  CHECK(near.sender().write(all.first(10), {}, true) == 10);
  CHECK(near.sender().flush());
  std::size_t received = 0;
  while (received < bytes.size() + 10) {
    const auto got = far.receiver().peek(100'000);
    for (const std::byte byte : got) CHECK(byte == bytes[received++ % bytes.size()]);
    far.receiver().consume(got.size());
    if (got.empty()) far.wait();
  }
}

void test_full_socket_takes_no_more_and_recovers() {
  auto [near_fd, far_fd] = connected_sockets(16384);
  End near(std::move(near_fd)), far(std::move(far_fd));
  const Stream stream(8);
  std::size_t sent = 0;
  for (std::size_t taken = 1; taken > 0; sent += taken) {
    taken = near.sender().write({}, stream.at(sent, 1 << 20), false);
  }
  CHECK(!near.connection.readiness().writable);
  // The staging buffer still takes some, until it is full, too.
  for (;;) {
    const auto room = near.sender().reserve(10'000);
    if (room.empty()) break;
    const auto bytes = stream.at(sent, room.size());
    std::copy(bytes.begin(), bytes.end(), room.begin());
    near.sender().commit(bytes.size());
    sent += bytes.size();
  }
  CHECK(!near.sender().flush());
  std::vector<std::byte> out(1 << 20);
  std::size_t received = 0;
  while (received < sent) {
    const std::size_t got = far.receiver().read(out);
    CHECK(stream.matches(received, std::span(out).first(got)));
    received += got;
    near.poller.poll(0ns);
    near.sender().flush();
    if (got == 0) far.poller.poll(1ms);
  }
  CHECK(near.sender().flush());
}

void test_half_close_is_closed_after_draining_and_the_other_way_lives() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  const auto bytes = random_bytes(300, 9);
  CHECK(near.sender().write({}, bytes, false) == bytes.size());
  CHECK(near.sender().flush());
  near.connection.shutdown_send();
  CHECK(near.sender().state() == PipeState::closed);
  CHECK(near.sender().write({}, bytes, false) == 0 && near.sender().reserve(10).empty());

  std::size_t received = 0;
  while (far.receiver().state() == PipeState::open) {
    const auto got = far.receiver().peek(100, 60);
    CHECK(got.empty() || std::memcmp(got.data(), bytes.data() + received, got.size()) == 0);
    if (got.empty() && far.receiver().state() == PipeState::open) far.wait();
    received += got.size();
    far.receiver().consume(got.size());
  }
  CHECK(far.receiver().state() == PipeState::closed && received == bytes.size());
  CHECK(far.connection.failure().empty());
  CHECK(far.receiver().read(std::span<std::byte>()) == 0);

  CHECK(far.sender().state() == PipeState::open);
  CHECK(far.sender().write(bytes, {}, false) == bytes.size());
  while (near.receiver().peek(bytes.size()).size() < bytes.size()) near.wait();
  CHECK(near.receiver().state() == PipeState::open);
}

void test_end_within_a_header_is_a_failure() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  const auto bytes = random_bytes(64 + 63, 12);
  CHECK(near.sender().write({}, bytes, false) == bytes.size());
  near.connection.shutdown_send();
  while (far.receiver().peek(64, 64).empty()) far.wait();
  far.receiver().consume(64);
  while (far.receiver().peek(64, 64).empty() && far.receiver().state() == PipeState::open) far.wait();
  CHECK(far.receiver().state() == PipeState::failed);
  CHECK(far.connection.failure() == "closed by the peer within a message");
  CHECK(far.receiver().peek(63).size() == 63);  // what came can still be read
}

void test_end_is_seen_even_if_its_event_came_before_the_last_bytes_were_read() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  const auto bytes = random_bytes(100, 10);
  CHECK(near.sender().write({}, bytes, false) == bytes.size());
  near.connection.shutdown_send();
  while (!far.connection.readiness().hangup) far.wait();
  std::vector<std::byte> out(1000);
  CHECK(far.receiver().read(out) == bytes.size());  // short, and no further edge will come
  CHECK(far.receiver().read(out) == 0);
  CHECK(far.receiver().state() == PipeState::closed);
}

void test_reset_is_failed() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd), 7);
  const linger hard{1, 0};
  CHECK(::setsockopt(far_fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
  const std::string text = near.connection.describe();
  const std::string wanted = "rank 7 (tcp connection 0, " + remote_endpoint(far_fd.get()).text() + " -> " +
                             local_endpoint(far_fd.get()).text() + ")";
  CHECK(text == wanted);
  far_fd.close();
  while (near.receiver().peek(10).empty() && near.receiver().state() == PipeState::open) near.wait();
  CHECK(near.receiver().state() == PipeState::failed);
  CHECK(near.connection.failure().find("reset") != std::string::npos);
  CHECK(near.connection.failure().find(std::to_string(ECONNRESET)) != std::string::npos);
  // Sending fails as well, at the latest with the second call, and never by a signal.
  const auto bytes = random_bytes(10'000, 11);
  for (int i = 0; i < 2; ++i) near.sender().write({}, bytes, false);
  CHECK(near.sender().state() == PipeState::failed);
  CHECK(near.sender().flush());  // nothing is left that could be sent
  CHECK(near.sender().reserve(10).empty());
  CHECK(near.connection.describe() == text);
}

void test_close_is_idempotent_and_ends_both_pipes() {
  auto [near_fd, far_fd] = connected_sockets();
  End near(std::move(near_fd)), far(std::move(far_fd));
  near.connection.close();
  near.connection.close();
  CHECK(near.sender().state() == PipeState::closed && near.receiver().state() == PipeState::closed);
  std::byte byte{};
  const std::span<std::byte> one(&byte, 1);
  CHECK(near.receiver().read(one) == 0 && near.receiver().peek(1).empty());
  CHECK(near.sender().write(one, {}, false) == 0);
  while (far.receiver().peek(1).empty() && far.receiver().state() == PipeState::open) far.wait();
  CHECK(far.receiver().state() == PipeState::closed);
}

void test_poller_reports_other_descriptors_once_and_in_any_number() {
  Poller poller;
  constexpr std::size_t num = 150;  // more than one batch
  std::vector<Fd> fds(num);
  std::vector<Readiness> flags(num);
  for (std::size_t i = 0; i < num; ++i) {
    fds[i] = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    poller.watch(fds[i].get(), flags[i]);
  }
  CHECK(poller.poll(0ns) == num);  // all are writable, which is news
  CHECK(poller.poll(0ns) == 0);
  for (Readiness& flag : flags) flag.readable = false;
  const std::uint64_t one = 1;
  for (std::size_t i = 0; i < num; i += 2) CHECK(::write(fds[i].get(), &one, sizeof one) == sizeof one);
  CHECK(poller.poll(-1ns) == num / 2);
  for (std::size_t i = 0; i < num; ++i) CHECK(flags[i].readable == (i % 2 == 0));
  flags[0].readable = false;
  CHECK(poller.poll(1ms) == 0 && !flags[0].readable);  // not drained, and yet no news: edges
  CHECK(::write(fds[0].get(), &one, sizeof one) == sizeof one);
  CHECK(poller.poll(0ns) == 1 && flags[0].readable);
  poller.forget(fds[0].get(), flags[0]);
  CHECK(!flags[0].watched);
  CHECK(::write(fds[0].get(), &one, sizeof one) == sizeof one);
  CHECK(poller.poll(0ns) == 0);
}

void test_poller_sleeps_as_long_as_told_and_wakes_at_once() {
  Poller poller;
  const Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  Readiness flags;
  poller.watch(fd.get(), flags);
  poller.poll(0ns);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(poller.poll(300us) == 0);
  CHECK(std::chrono::steady_clock::now() - begin >= 300us);
  auto other = std::async(std::launch::async, [&] {
    const std::uint64_t one = 1;
    CHECK(::write(fd.get(), &one, sizeof one) == sizeof one);
  });
  CHECK(poller.poll(kPatience) == 1);
  other.get();
}

}  // namespace

int main() {
  return hccl_py::testing::run_tests({
      {"64 mib both ways through all calls", test_64_mib_both_ways_through_all_calls},
      {"small socket buffer", test_small_socket_buffer},
      {"signals interrupt nothing", test_signals_interrupt_nothing},
      {"works without a poller", test_works_without_a_poller},
      {"header is contiguous wherever it lies", test_header_is_contiguous_wherever_it_lies},
      {"large read does not pass through the buffer", test_large_read_does_not_pass_through_the_buffer},
      {"more holds back and flush sends", test_more_holds_back_and_flush_sends},
      {"full socket takes no more and recovers", test_full_socket_takes_no_more_and_recovers},
      {"half close is closed after draining and the other way lives",
       test_half_close_is_closed_after_draining_and_the_other_way_lives},
      {"end within a header is a failure", test_end_within_a_header_is_a_failure},
      {"end is seen even if its event came before the last bytes were read",
       test_end_is_seen_even_if_its_event_came_before_the_last_bytes_were_read},
      {"reset is failed", test_reset_is_failed},
      {"close is idempotent and ends both pipes", test_close_is_idempotent_and_ends_both_pipes},
      {"poller reports other descriptors once and in any number",
       test_poller_reports_other_descriptors_once_and_in_any_number},
      {"poller sleeps as long as told and wakes at once", test_poller_sleeps_as_long_as_told_and_wakes_at_once},
  });
}
