// SPDX-License-Identifier: Apache-2.0
// The listener and what it publishes, and the candidates that follow from what all ranks published.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/tcp.hpp"
#include "net_testing.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;
using Addresses = std::vector<std::vector<std::byte>>;

TcpOptions on(const char* interfaces, int connections = 1) {
  TcpOptions options;
  options.interfaces = interfaces;
  options.connections = connections;
  return options;
}

void test_port_range() {
  const TcpListener holder(on("127.0.0.1"));
  TcpOptions options = on("127.0.0.1");
  options.first_port = options.last_port = holder.port();
  const std::string text = message_of<TransportUnavailableError>([&] { TcpListener{options}; });
  const std::string port = std::to_string(holder.port());
  CHECK_CONTAINS(text, "no free port in tcp_port_range " + port + "-" + port);
  CHECK_CONTAINS(text, port + " is held by pid " + std::to_string(::getpid()) + " (");
  options.last_port = static_cast<std::uint16_t>(std::min(65535, holder.port() + 50));
  const TcpListener next(options);
  CHECK(next.port() > holder.port() && next.port() <= options.last_port);
}

void test_wrong_options_are_refused() {
  const auto refused = [](auto change, const char* words) {
    TcpOptions options = on("127.0.0.1");
    change(options);
    CHECK_CONTAINS(message_of<ConfigError>([&] { TcpListener{options}; }), words);
  };
  refused([](TcpOptions& o) { o.connections = 0; }, "tcp_connections is 0; it may be 1 to 128");
  refused([](TcpOptions& o) { o.connections = 129; }, "it may be 1 to 128");
  refused([](TcpOptions& o) { o.first_port = 5, o.last_port = 4; }, "tcp_port_range is 5-4");
  refused([](TcpOptions& o) { o.last_port = 4; }, "tcp_port_range is 0-4");
  refused([](TcpOptions& o) { o.interfaces = "no_such_if"; }, "lo (127.0.0.1");
  TcpOptions options = on("127.0.0.1");
  options.family = Family::v6;
  try {
    TcpListener{options};
    CHECK(false);
  } catch (const TransportUnavailableError& error) {
    CHECK(error.reason() == "no IPv6 address");
  }
}

void test_address_round_trip_and_rejects() {
  const TcpListener listener(on("", 3));
  const auto bytes = listener.address();
  const TcpAddress address = TcpAddress::decode(bytes);
  CHECK(address.encode() == bytes && address.port == listener.port() && address.connections == 3);
  CHECK_EQ(address.entries.size(), listener.locals().size());
  CHECK(address.stack == network_stack_id());
  const auto refused = [](std::vector<std::byte> wrong) {
    CHECK_CONTAINS(message_of<ConfigError>([&] { TcpAddress::decode(wrong); }), "not the address of a tcp listener");
  };
  refused({});
  refused({bytes.begin(), bytes.end() - 1});
  auto wrong = bytes;
  wrong[0] ^= std::byte{1};
  refused(wrong);
  wrong = bytes;
  wrong[44] = std::byte{5};  // the family of the first entry
  refused(wrong);
  wrong = bytes;
  wrong[45] = std::byte{129};  // its prefix
  refused(wrong);
}

void test_job_id_is_that_of_these_addresses() {
  Addresses addresses;
  for (int rank = 0; rank < 3; ++rank) addresses.push_back(TcpListener(on("127.0.0.1")).address());
  CHECK(job_id_of(addresses) == job_id_of(addresses));
  Addresses other = addresses;
  std::swap(other[0], other[1]);
  CHECK(job_id_of(other) != job_id_of(addresses));
  other = addresses;
  other[2][30] ^= std::byte{1};
  CHECK(job_id_of(other) != job_id_of(addresses));
  const Addresses split{{std::byte{1}}, {std::byte{2}, std::byte{3}}};
  const Addresses split_later{{std::byte{1}, std::byte{2}}, {std::byte{3}}};
  CHECK(job_id_of(split) != job_id_of(split_later));
}

// ---- candidates, as a pure function of what the ranks published

TcpAddress host(std::uint8_t stack, std::vector<TcpAddress::Entry> entries) {
  TcpAddress address;
  address.stack[0] = stack;
  address.port = 5000;
  address.entries = std::move(entries);
  return address;
}

// "10.0.0.2:5000 from 10.0.0.1, ..."
std::string ways(const std::vector<LocalAddress>& locals, const TcpOptions& options, const std::vector<TcpAddress>& all,
                 std::string* reasons = nullptr) {
  std::vector<std::string> unused;
  std::string text;
  for (const TcpCandidate& candidate : tcp_candidates(locals, options, all[0], all, 1, unused)) {
    text += (text.empty() ? "" : ", ") + candidate.remote.text();
    if (candidate.has_source) text += " from " + candidate.source.text();
  }
  for (const std::string& reason : unused) {
    if (reasons != nullptr) *reasons += reason + "\n";
  }
  return text;
}

void test_candidates_of_another_host() {
  const std::vector<LocalAddress> locals{{"lo", ip("127.0.0.1"), 8}, {"eth0", ip("10.0.0.1"), 24},
                                         {"eth1", ip("10.0.1.1"), 24}, {"docker0", ip("172.17.0.1"), 16}};
  const std::vector<TcpAddress> all{
      host(1, {{ip("127.0.0.1"), 8}, {ip("10.0.0.1"), 24}, {ip("10.0.1.1"), 24}, {ip("172.17.0.1"), 16}}),
      host(2, {{ip("127.0.0.1"), 8}, {ip("172.17.0.1"), 16}, {ip("192.168.0.2"), 24}, {ip("10.0.1.2"), 24},
               {ip("fd00::2"), 64}})};
  std::string reasons;
  CHECK_EQ(ways(locals, on(""), all, &reasons), "10.0.1.2:5000 from 10.0.1.1, 192.168.0.2:5000");
  CHECK_CONTAINS(reasons, "127.0.0.1: not tried, it is the other host's loopback");
  CHECK_CONTAINS(reasons, "172.17.0.1: not tried, rank 0 on another host has the same address");
  CHECK_CONTAINS(reasons, "fd00::2: not tried, no IPv6 address is usable here");
  // With chosen interfaces the source is bound also where the kernel would choose.
  const std::vector<LocalAddress> one{locals[1]};
  CHECK_EQ(ways(one, on("eth0"), all), "192.168.0.2:5000 from 10.0.0.1, 10.0.1.2:5000 from 10.0.0.1");
  TcpOptions only_v6 = on("");
  only_v6.family = Family::v6;
  CHECK_EQ(ways(locals, only_v6, all), "");
}

void test_candidates_of_the_same_host() {
  const std::vector<LocalAddress> locals{{"lo", ip("127.0.0.1"), 8}, {"eth0", ip("10.0.0.1"), 24}};
  const std::vector<TcpAddress::Entry> entries{{ip("10.0.0.1"), 24}, {ip("127.0.0.1"), 8}};
  const std::vector<TcpAddress> all{host(1, entries), host(1, entries), host(2, entries)};
  CHECK_EQ(ways(locals, on(""), all), "127.0.0.1:5000, 10.0.0.1:5000");
  const std::vector<LocalAddress> no_loopback{locals[1]};
  std::string reasons;
  CHECK_EQ(ways(no_loopback, on("eth0"), all, &reasons), "10.0.0.1:5000");
  CHECK_CONTAINS(reasons, "127.0.0.1: not tried, tcp_interfaces excludes loopback here");
}

void test_candidates_over_link_local_addresses() {
  IpAddress here = ip("fe80::1"), there = ip("fe80::2");
  here.scope = 1;  // lo: the name is known on every host
  there.scope = 77;
  const std::vector<LocalAddress> locals{{"lo", here, 64}, {"eth0", ip("fd00::1"), 64}};
  const std::vector<TcpAddress> all{host(1, {{here, 64}, {ip("fd00::1"), 64}}),
                                    host(2, {{there, 64}, {ip("fd00::2"), 64}})};
  CHECK_EQ(ways(locals, on(""), all), "[fd00::2]:5000 from fd00::1, [fe80::2%lo]:5000 from fe80::1%lo");
  const std::vector<LocalAddress> no_link_local{locals[1]};
  std::string reasons;
  CHECK_EQ(ways(no_link_local, on(""), all, &reasons), "[fd00::2]:5000 from fd00::1");
  CHECK_CONTAINS(reasons, "no link-local address is usable here");
}

}  // namespace

int main() {
  return run_tests({
      {"port range", test_port_range},
      {"wrong options are refused", test_wrong_options_are_refused},
      {"address round trip and rejects", test_address_round_trip_and_rejects},
      {"job id is that of these addresses", test_job_id_is_that_of_these_addresses},
      {"candidates of another host", test_candidates_of_another_host},
      {"candidates of the same host", test_candidates_of_the_same_host},
      {"candidates over link-local addresses", test_candidates_over_link_local_addresses},
  });
}
