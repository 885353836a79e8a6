// SPDX-License-Identifier: Apache-2.0
// From listeners to connections, ranks as threads over loopback: who connects to whom at which address, strangers that
// change nothing, and errors that name the peer, its addresses and the cause.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/tcp.hpp"
#include "net_testing.hpp"

namespace {

using namespace hccl_py;
using namespace std::chrono_literals;
using namespace hccl_py::testing;
using Addresses = std::vector<std::vector<std::byte>>;
using Listeners = std::vector<std::unique_ptr<TcpListener>>;

constexpr std::chrono::nanoseconds kPatience = 20s;

TcpOptions on(const char* interfaces, int connections = 1) {
  TcpOptions options;
  options.interfaces = interfaces;
  options.connections = connections;
  return options;
}

Listeners listeners(std::size_t world, const TcpOptions& options) {
  Listeners result;
  for (std::size_t rank = 0; rank < world; ++rank) result.push_back(std::make_unique<TcpListener>(options));
  return result;
}

Addresses addresses_of(const Listeners& all) {
  Addresses addresses;
  for (const auto& listener : all) addresses.push_back(listener->address());
  return addresses;
}

TcpMember member(int rank, const Addresses& addresses) { return {rank, job_id_of(addresses), 3, 0}; }

std::vector<int> everybody_but(int rank, std::size_t world) {
  std::vector<int> peers;
  for (int peer = 0; peer < static_cast<int>(world); ++peer) {
    if (peer != rank) peers.push_back(peer);
  }
  return peers;
}

TcpMesh connect_rank(const Listeners& all, const Addresses& addresses, int rank, std::chrono::nanoseconds timeout) {
  return connect_tcp(*all[static_cast<std::size_t>(rank)], member(rank, addresses), addresses,
                     everybody_but(rank, addresses.size()), timeout);
}

// All ranks at once, each in a thread.
std::vector<TcpMesh> connect_all(const Listeners& all) {
  const Addresses addresses = addresses_of(all);
  std::vector<std::future<TcpMesh>> threads;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const auto connect = [&, rank] { return connect_rank(all, addresses, rank, kPatience); };
    threads.push_back(std::async(std::launch::async, connect));
  }
  std::vector<TcpMesh> meshes;
  for (auto& thread : threads) meshes.push_back(thread.get());
  return meshes;
}

// Sends a word on every connection of every rank and checks that it comes out at the right one.
void check_wiring(const std::vector<TcpMesh>& meshes, int connections) {
  const auto word = [](int from, int to, int index) {
    return std::array{static_cast<std::byte>(from), static_cast<std::byte>(to), static_cast<std::byte>(index)};
  };
  const auto world = static_cast<int>(meshes.size());
  for (int rank = 0; rank < world; ++rank) {
    const auto& mine = meshes[static_cast<std::size_t>(rank)].connections;
    CHECK_EQ(mine.size(), static_cast<std::size_t>((world - 1) * connections));
    for (std::size_t i = 0; i < mine.size(); ++i) {
      CHECK_EQ(mine[i]->peer(), everybody_but(rank, meshes.size())[i / static_cast<std::size_t>(connections)]);
      CHECK_EQ(mine[i]->index(), static_cast<int>(i) % connections);
      CHECK(mine[i]->sender().write(word(rank, mine[i]->peer(), mine[i]->index()), {}, false) == 3);
    }
  }
  for (int rank = 0; rank < world; ++rank) {
    for (const auto& connection : meshes[static_cast<std::size_t>(rank)].connections) {
      std::span<const std::byte> got;
      while (got.size() < 3 && connection->receiver().state() == PipeState::open) got = connection->receiver().peek(8);
      const auto wanted = word(connection->peer(), rank, connection->index());
      CHECK(std::equal(got.begin(), got.end(), wanted.begin(), wanted.end()));
    }
  }
}

bool has_ipv6() {
  const auto all = local_addresses();
  return std::any_of(all.begin(), all.end(), [](const LocalAddress& local) { return local.ip == ip("::1"); });
}

Fd connected_to(const Endpoint& endpoint) {
  sockaddr_storage address;
  const socklen_t length = endpoint.to(address);
  Fd fd(::socket(endpoint.ip.family == Family::v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  return fd;
}

void send_all(const Fd& fd, std::span<const std::byte> bytes) {
  CHECK(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

std::array<std::byte, kHelloBytes> encoded(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes;
  encode(hello, std::span<std::byte, kHelloBytes>(bytes));
  return bytes;
}

// A listening socket that is no TcpListener.
Fd plain_listener(const Endpoint& endpoint) {
  sockaddr_storage address;
  const socklen_t length = endpoint.to(address);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  CHECK(::listen(fd.get(), 8) == 0);
  return fd;
}

void test_four_ranks_with_two_connections_each() {
  const auto all = listeners(4, on("", 2));
  const auto meshes = connect_all(all);
  check_wiring(meshes, 2);
  for (const TcpMesh& mesh : meshes) CHECK_EQ(mesh.num_strangers, 0);
  // The two ends of a pair name the same two endpoints.
  const TcpConnection& lower = *meshes[0].connections[0];
  CHECK_EQ(local_endpoint(lower.fd()).text(), remote_endpoint(meshes[1].connections[0]->fd()).text());
  CHECK_CONTAINS(lower.describe(), "rank 1 (tcp connection 0, 127.0.0.1:");
}

void test_seven_ranks_where_some_pairs_need_no_connection() {
  const auto all = listeners(7, on("127.0.0.1"));
  const Addresses addresses = addresses_of(all);
  std::vector<std::future<TcpMesh>> threads;
  for (int rank = 0; rank < 7; ++rank) {  // a ring
    threads.push_back(std::async(std::launch::async, [&, rank] {
      const std::vector<int> peers{(rank + 1) % 7, (rank + 6) % 7};
      return connect_tcp(*all[static_cast<std::size_t>(rank)], member(rank, addresses), addresses, peers, kPatience);
    }));
  }
  for (int rank = 0; rank < 7; ++rank) {
    const TcpMesh mesh = threads[static_cast<std::size_t>(rank)].get();
    CHECK_EQ(mesh.connections.size(), 2U);
    CHECK_EQ(mesh.connections[0]->peer(), (rank + 1) % 7);
    CHECK_EQ(mesh.connections[1]->peer(), (rank + 6) % 7);
  }
}

void test_one_rank_and_no_peers() {
  const auto all = listeners(1, on(""));
  CHECK(connect_rank(all, addresses_of(all), 0, 0ns).connections.empty());
}

void test_ipv6_loopback() {
  if (!has_ipv6()) return void(std::printf("skipped: no ::1 on this host\n"));
  TcpOptions options = on("::1", 2);
  options.family = Family::v6;
  const auto all = listeners(3, options);
  const auto meshes = connect_all(all);
  check_wiring(meshes, 2);
  CHECK_CONTAINS(meshes[0].connections[0]->describe(), "[::1]:");
}

void test_dual_stack_listener_is_reached_by_either_family() {
  if (!has_ipv6()) return void(std::printf("skipped: no ::1 on this host\n"));
  for (const Family family : {Family::v4, Family::v6}) {
    Listeners all;
    TcpOptions options = on("127.0.0.1,::1");
    options.family = family;
    all.push_back(std::make_unique<TcpListener>(options));  // rank 0 connects, and knows one family only
    all.push_back(std::make_unique<TcpListener>(on("127.0.0.1,::1")));
    check_wiring(connect_all(all), 1);
  }
}

void test_socket_buffers_are_set_before_the_connection_is_made() {
  TcpOptions options = on("127.0.0.1");
  options.send_buffer_bytes = 50'000;
  options.recv_buffer_bytes = 60'000;
  const auto meshes = connect_all(listeners(2, options));
  for (const TcpMesh& mesh : meshes) {
    int bytes = 0, set = 0;
    socklen_t length = sizeof bytes;
    const int fd = mesh.connections[0]->fd();
    CHECK(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0);
    CHECK_EQ(bytes, 100'000);  // the kernel doubles
    CHECK(::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) == 0);
    CHECK_EQ(bytes, 120'000);
    CHECK(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &set, &length) == 0 && set != 0);
    CHECK(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &set, &length) == 0 && set != 0);
  }
}

void test_strangers_change_nothing_and_are_counted() {
  const auto all = listeners(2, on("127.0.0.1", 2));
  const Addresses addresses = addresses_of(all);
  const Endpoint target{ip("127.0.0.1"), all[1]->port()};
  Hello good;
  good.job = member(0, addresses).job;
  good.communicator = 3;
  good.from_rank = 0;
  good.to_rank = 1;
  good.num_connections = 2;
  std::vector<Fd> strangers;
  const auto stranger = [&](std::span<const std::byte> bytes) {
    strangers.push_back(connected_to(target));
    if (!bytes.empty()) send_all(strangers.back(), bytes);
  };
  const auto variant = [&](auto change) {
    Hello hello = good;
    change(hello);
    stranger(encoded(hello));
  };
  stranger({});                                                      // silent: still pending when the mesh is done
  const auto whole = encoded(good);
  stranger(std::span(whole).first(50));                              // likewise, half a Hello
  stranger(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n", 18)));  // 1
  variant([](Hello& hello) { hello.job[0] ^= 1; });                  // 2
  variant([](Hello& hello) { hello.communicator = 4; });             // 3
  variant([](Hello& hello) { hello.epoch = 1; });                    // 4
  variant([](Hello& hello) { hello.to_rank = 0; });                  // 5
  variant([](Hello& hello) { hello.from_rank = 1; });                // 6
  variant([](Hello& hello) { hello.version = hello.oldest_version = kWireVersion + 1; });  // 7
  variant([](Hello& hello) { hello.connection = 2; });               // sent away, as a peer that is late would be
  strangers.push_back(connected_to(target));
  strangers.back().close();                                          // 8: gone at once
  variant([](Hello&) {});  // a perfect Hello that is never confirmed: it holds no place
  const auto meshes = connect_all(all);
  check_wiring(meshes, 2);
  CHECK_EQ(meshes[0].num_strangers, 0);
  CHECK_EQ(meshes[1].num_strangers, 8);
  CHECK_CONTAINS(meshes[1].last_stranger, "127.0.0.1:");

  // What the seventh was told.
  std::array<std::byte, kHelloAckBytes> bytes;
  CHECK(::recv(strangers[8].get(), bytes.data(), bytes.size(), MSG_WAITALL) == static_cast<ssize_t>(bytes.size()));
  HelloAck ack;
  CHECK(decode(std::span<const std::byte, kHelloAckBytes>(bytes), ack) == WireFault::none);
  CHECK(ack.refusal == Refusal::version);
}

// Rank 1 publishes 127.0.0.2 before its real address; there somebody else listens, whose doings are given.
void connect_past(const std::function<void(int)>& other) {
  const auto all = listeners(2, on("127.0.0.1"));
  Addresses addresses = addresses_of(all);
  TcpAddress published = TcpAddress::decode(addresses[1]);
  published.entries.insert(published.entries.begin(), {ip("127.0.0.2"), 8});
  addresses[1] = published.encode();
  const Fd fake = plain_listener({ip("127.0.0.2"), all[1]->port()});
  auto first = std::async(std::launch::async, [&] { return connect_rank(all, addresses, 0, kPatience); });
  auto second = std::async(std::launch::async, [&] { return connect_rank(all, addresses, 1, kPatience); });
  const Fd tried(::accept(fake.get(), nullptr, nullptr));
  CHECK(tried);
  other(tried.get());
  std::vector<TcpMesh> meshes;
  meshes.push_back(first.get());
  meshes.push_back(second.get());
  check_wiring(meshes, 1);
  CHECK_CONTAINS(meshes[0].connections[0]->describe(), "-> 127.0.0.1:");
}

void test_address_that_never_answers_is_passed_over() {
  connect_past([](int) {});
}

void test_address_that_answers_nonsense_is_passed_over() {
  connect_past([](int fd) {
    const std::vector<std::byte> nonsense(kHelloAckBytes, std::byte{0x20});
    CHECK(::send(fd, nonsense.data(), nonsense.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(nonsense.size()));
  });
}

void test_address_where_another_rank_answers_is_passed_over() {
  connect_past([](int fd) {
    std::array<std::byte, kHelloBytes> bytes;
    CHECK(::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) == static_cast<ssize_t>(bytes.size()));
    Hello hello;
    CHECK(decode(std::span<const std::byte, kHelloBytes>(bytes), hello) == WireFault::none);
    HelloAck ack;
    ack.rank = 5;
    ack.echo = hello.nonce;
    std::array<std::byte, kHelloAckBytes> answer;
    encode(ack, std::span<std::byte, kHelloAckBytes>(answer));
    CHECK(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size()));
  });
}

void test_late_acceptor_gets_one_connection_though_several_addresses_answer() {
  const auto all = listeners(2, on(""));
  const Addresses addresses = addresses_of(all);
  std::vector<std::string> unused;
  const std::vector<TcpAddress> decoded{TcpAddress::decode(addresses[0]), TcpAddress::decode(addresses[1])};
  const auto ways = tcp_candidates(all[0]->locals(), all[0]->options(), decoded[0], decoded, 1, unused);
  if (ways.size() < 2) return void(std::printf("skipped: this host has one address\n"));
  auto first = std::async(std::launch::async, [&] { return connect_rank(all, addresses, 0, kPatience); });
  // Both attempts wait in the listener's queue before rank 1 looks.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (unsigned queued = 0; queued < 2;) {
    tcp_info info{};
    socklen_t length = sizeof info;
    CHECK(::getsockopt(all[1]->fd(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    queued = info.tcpi_unacked;  // of a listening socket: the length of its queue
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::yield();
  }
  std::vector<TcpMesh> meshes(2);
  meshes[1] = connect_rank(all, addresses, 1, kPatience);
  meshes[0] = first.get();
  check_wiring(meshes, 1);
  CHECK_EQ(meshes[1].num_strangers, 0);
}

void test_timeout_names_the_missing_peers_and_their_addresses() {
  auto all = listeners(4, on("127.0.0.1"));
  const Addresses addresses = addresses_of(all);
  const std::string nowhere = "127.0.0.1:" + std::to_string(all[3]->port());
  const std::string silent = "127.0.0.1:" + std::to_string(all[2]->port());
  all[3].reset();  // rank 3 is gone; rank 2 listens, and never accepts
  auto other = std::async(std::launch::async, [&] {
    return message_of<CollectiveTimeoutError>([&] { connect_rank(all, addresses, 0, 1500ms); });
  });
  try {
    connect_rank(all, addresses, 1, 1500ms);
    CHECK(false);
  } catch (const CollectiveTimeoutError& error) {
    const std::string text = error.what();
    CHECK_EQ(error.rank(), 1);
    CHECK_EQ(error.peer(), 2);
    CHECK(error.waited_s() >= 1.5);
    CHECK_CONTAINS(text, "rank 1 waited ");
    CHECK_CONTAINS(text, " s; 2 of 3 peers are not connected");
    CHECK_CONTAINS(text, "rank 2: 0 of 1 connections; " + silent + ": connected, but the handshake is not answered");
    CHECK_CONTAINS(text, "rank 3: 0 of 1 connections; " + nowhere + ": Connection refused (errno 111)");
    CHECK(!contains(text, "rank 0:"));
  }
  CHECK_CONTAINS(other.get(), "rank 0 waited");
  // The accepting side says where it waited, and who else came.
  const Fd stranger = connected_to({ip("127.0.0.1"), all[2]->port()});
  send_all(stranger, std::as_bytes(std::span("SSH-2.0", 7)));
  const std::string text = message_of<CollectiveTimeoutError>([&] { connect_rank(all, addresses, 2, 100ms); });
  const std::string port = std::to_string(all[2]->port());
  CHECK_CONTAINS(text, "rank 0: 0 of 1 connections; it is to connect to us at 127.0.0.1 port " + port);
  CHECK_CONTAINS(text, local_endpoint(stranger.get()).text() + ": not a hccl_py message (wrong magic)");
}

void test_refusal_is_told_to_the_one_who_connects() {
  const auto all = listeners(2, on("127.0.0.1"));
  const Addresses addresses = addresses_of(all);
  struct Done {};
  std::atomic<bool> done = false;
  auto other = std::async(std::launch::async, [&] {
    TcpMember elsewhere = member(1, addresses);
    elsewhere.epoch = 9;
    const auto check = [&] {
      if (done) throw Done{};
    };
    try {
      connect_tcp(*all[1], elsewhere, addresses, everybody_but(1, 2), kPatience, check);
    } catch (const Done&) {
      return true;
    }
    return false;
  });
  std::string text;
  for (int i = 0; i < 50 && !contains(text, "refused"); ++i) {
    text = message_of<CollectiveTimeoutError>([&] { connect_rank(all, addresses, 0, 300ms); });
  }
  done = true;
  CHECK(other.get());
  CHECK_CONTAINS(text, "refused: it is in another epoch");
}

void test_check_ends_the_waiting() {
  const auto all = listeners(2, on("127.0.0.1"));
  const Addresses addresses = addresses_of(all);
  struct Interrupted {};
  int calls = 0;
  bool interrupted = false;
  try {
    connect_tcp(*all[0], member(0, addresses), addresses, everybody_but(0, 2), std::chrono::nanoseconds::max(), [&] {
      if (++calls == 3) throw Interrupted{};
    });
  } catch (const Interrupted&) {
    interrupted = true;
  }
  CHECK(interrupted);
}

void test_ranks_that_can_never_be_reached_are_an_error_at_once() {
  const auto all = listeners(2, on("127.0.0.1"));
  const Addresses addresses = addresses_of(all);
  const auto with = [&](auto change) {
    Addresses changed = addresses;
    TcpAddress theirs = TcpAddress::decode(addresses[1]);
    change(theirs);
    changed[1] = theirs.encode();
    return changed;
  };
  std::string text = message_of<ConfigError>([&] {
    connect_rank(all, with([](TcpAddress& theirs) { theirs.connections = 4; }), 0, kPatience);
  });
  CHECK_CONTAINS(text, "rank 0 and rank 1: tcp_connections is 1 here and 4 there");
  text = message_of<TransportUnavailableError>([&] {
    connect_rank(all, with([](TcpAddress& theirs) { theirs.version = theirs.oldest_version = 2; }), 0, kPatience);
  });
  CHECK_CONTAINS(text, "they speak wire versions 2 to 2, we 1 to 1");
  text = message_of<TransportUnavailableError>([&] {
    connect_rank(all, with([](TcpAddress& theirs) { theirs.stack[0] ^= 1; }), 0, kPatience);
  });
  CHECK_CONTAINS(text, "rank 0 has no way to rank 1; 127.0.0.1: not tried, it is the other host's loopback");
  Addresses empty = addresses;
  empty[1].clear();
  text = message_of<ConfigError>([&] { connect_rank(all, empty, 0, kPatience); });
  CHECK_CONTAINS(text, "rank 1 published no tcp address");
  for (const std::vector<int>& peers : {std::vector<int>{0}, {2}, {-1}, {1, 1}}) {
    text = message_of<ConfigError>([&] { connect_tcp(*all[0], member(0, addresses), addresses, peers, kPatience); });
    CHECK_CONTAINS(text, "not a pair of two ranks");
  }
}

}  // namespace

int main() {
  return hccl_py::testing::run_tests({
      {"four ranks with two connections each", test_four_ranks_with_two_connections_each},
      {"seven ranks where some pairs need no connection", test_seven_ranks_where_some_pairs_need_no_connection},
      {"one rank and no peers", test_one_rank_and_no_peers},
      {"ipv6 loopback", test_ipv6_loopback},
      {"dual stack listener is reached by either family", test_dual_stack_listener_is_reached_by_either_family},
      {"socket buffers are set before the connection is made",
       test_socket_buffers_are_set_before_the_connection_is_made},
      {"strangers change nothing and are counted", test_strangers_change_nothing_and_are_counted},
      {"address that never answers is passed over", test_address_that_never_answers_is_passed_over},
      {"address that answers nonsense is passed over", test_address_that_answers_nonsense_is_passed_over},
      {"address where another rank answers is passed over", test_address_where_another_rank_answers_is_passed_over},
      {"late acceptor gets one connection though several addresses answer",
       test_late_acceptor_gets_one_connection_though_several_addresses_answer},
      {"timeout names the missing peers and their addresses", test_timeout_names_the_missing_peers_and_their_addresses},
      {"refusal is told to the one who connects", test_refusal_is_told_to_the_one_who_connects},
      {"check ends the waiting", test_check_ends_the_waiting},
      {"ranks that can never be reached are an error at once",
       test_ranks_that_can_never_be_reached_are_an_error_at_once},
  });
}
