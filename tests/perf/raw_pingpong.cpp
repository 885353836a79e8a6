// SPDX-License-Identifier: Apache-2.0
// Round trips of a few bytes over one TCP connection, as fast as the socket interface gives them: the limit that
// lab_bench.py holds hccl_py's latency against. Prints the median round trip in ns.
// Usage: raw_pingpong server PORT | client ADDRESS PORT ROUNDS   (both: spin | block)
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kBytes = 8;

[[noreturn]] void stop(const char* what) {
  std::perror(what);
  std::exit(1);
}

bool receive(int fd, char* bytes, int flags) {
  for (std::size_t have = 0; have < kBytes;) {
    const ssize_t n = ::recv(fd, bytes + have, kBytes - have, flags);
    if (n == 0) return false;
    if (n > 0) have += static_cast<std::size_t>(n);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const bool server = std::strcmp(argv[1], "server") == 0;
  const char* how = server ? argv[3] : argv[5];
  const int flags = std::strcmp(how, "spin") == 0 ? MSG_DONTWAIT : 0;
  const int on = 1;
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(argv[server ? 2 : 3])));
  char bytes[kBytes] = {};
  if (server) {
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 1) != 0) stop("listen");
    const int listener = fd;
    fd = ::accept(listener, nullptr, nullptr);
    if (fd < 0) stop("accept");
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while (receive(fd, bytes, flags)) {
      if (::send(fd, bytes, kBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kBytes)) break;
    }
    return 0;
  }
  ::inet_pton(AF_INET, argv[2], &address.sin_addr);
  for (int i = 0; ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0; ++i) {
    if (i == 100) stop("connect");
    ::close(fd);
    ::usleep(20'000);
    fd = ::socket(AF_INET, SOCK_STREAM, 0);
  }
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int rounds = std::atoi(argv[4]);
  std::vector<long long> took;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (::send(fd, bytes, kBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kBytes) || !receive(fd, bytes, flags)) stop("round trip");
    took.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(took.begin(), took.begin() + rounds / 2, took.end());
  std::printf("%lld\n", took[static_cast<std::size_t>(rounds) / 2]);
  return 0;
}
