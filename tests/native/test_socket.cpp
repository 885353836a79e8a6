// SPDX-License-Identifier: Apache-2.0
// Addresses, endpoints and the interface list: what is accepted, what is chosen, and what is refused with which words.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "check.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/socket.hpp"
#include "net_testing.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

// A host with a bridge, two NICs and a routable address on lo.
std::vector<LocalAddress> some_host() {
  return {{"lo", ip("127.0.0.1"), 8},        {"lo", ip("10.99.0.1"), 32},     {"eth0", ip("10.0.0.1"), 24},
          {"eth0", ip("fd00::1"), 64},       {"eth1", ip("10.0.1.1"), 24},    {"docker0", ip("172.17.0.1"), 16},
          {"eno1", ip("192.168.1.17"), 26}};
}

// The chosen addresses, joined.
std::string chosen(const char* list) {
  std::string text;
  for (const LocalAddress& local : InterfaceList::parse(list).select(some_host())) {
    text += (text.empty() ? "" : " ") + local.ip.text();
  }
  return text;
}

void test_addresses_are_parsed_and_printed() {
  for (const char* text : {"10.0.0.1", "127.0.0.1", "::1", "fd00::2", "::"}) CHECK(ip(text).text() == text);
  for (const char* text : {"", "10.0.0", "10.0.0.256", "eth0", "fd00::g", "10.0.0.1%lo", "fe80::1%none", "1.2.3.4/8"}) {
    CHECK(!IpAddress::parse(text).has_value());
  }
  CHECK(ip("fe80::1%lo").scope != 0 && ip("fe80::1%lo").text() == "fe80::1%lo");
  CHECK(ip("10.0.0.1") == ip("10.0.0.1") && ip("10.0.0.1") != ip("10.0.0.2"));
  CHECK(ip("::") != ip("0.0.0.0"));
}

void test_kinds_of_addresses() {
  CHECK(ip("127.3.2.1").is_loopback() && ip("::1").is_loopback());
  CHECK(!ip("128.0.0.1").is_loopback() && !ip("::2").is_loopback());
  CHECK(ip("169.254.9.9").is_link_local() && ip("fe80::1").is_link_local() && ip("febf::1").is_link_local());
  CHECK(!ip("169.253.9.9").is_link_local() && !ip("fec0::1").is_link_local());
  CHECK(ip("10.0.0.1").same_network(ip("10.0.0.200"), 24) && !ip("10.0.0.1").same_network(ip("10.0.1.1"), 24));
  CHECK(ip("10.0.0.1").same_network(ip("10.0.0.62"), 26) && !ip("10.0.0.1").same_network(ip("10.0.0.64"), 26));
  CHECK(ip("fd00::1").same_network(ip("fd00::ffff"), 64) && !ip("fd00::1").same_network(ip("fd00:0:0:1::1"), 64));
  CHECK(!ip("10.0.0.1").same_network(ip("fd00::1"), 0) && ip("10.0.0.1").same_network(ip("99.0.0.1"), 0));
}

void test_endpoints_survive_the_kernels_form() {
  for (const char* text : {"10.1.2.3", "fd00::7", "fe80::1%lo"}) {
    sockaddr_storage storage;
    const Endpoint endpoint{ip(text), 4711};
    CHECK(endpoint.to(storage) <= sizeof storage);
    const Endpoint back = Endpoint::from(storage);
    CHECK(back.ip == endpoint.ip && back.port == 4711 && back.ip.scope == endpoint.ip.scope);
  }
  const Endpoint v4_endpoint{ip("10.1.2.3"), 80};
  const Endpoint v6_endpoint{ip("fd00::7"), 80};
  CHECK(v4_endpoint.text() == "10.1.2.3:80" && v6_endpoint.text() == "[fd00::7]:80");
  sockaddr_storage storage;
  const Endpoint mapped{ip("::ffff:10.1.2.3"), 80};
  mapped.to(storage);
  CHECK(Endpoint::from(storage).text() == "10.1.2.3:80");
}

void test_interface_list_selects() {
  const std::string all = "127.0.0.1 10.99.0.1 10.0.0.1 fd00::1 10.0.1.1 172.17.0.1 192.168.1.17";
  CHECK(chosen("") == all);
  CHECK(chosen("  ") == all);
  CHECK(chosen("eth0") == "10.0.0.1 fd00::1");
  CHECK(chosen("eth*") == "10.0.0.1 fd00::1 10.0.1.1");
  CHECK(chosen("eno1, eth1") == "10.0.1.1 192.168.1.17");
  CHECK(chosen("10.0.0.0/16") == "10.0.0.1 10.0.1.1");
  CHECK(chosen("10.99.0.1") == "10.99.0.1");  // a real address, though on lo
  CHECK(chosen("fd00::/16,192.168.1.17") == "fd00::1 192.168.1.17");
  CHECK(chosen("0.0.0.0/0") == "127.0.0.1 10.99.0.1 10.0.0.1 10.0.1.1 172.17.0.1 192.168.1.17");
  CHECK(chosen("^docker0,lo,eno1") == "10.0.0.1 fd00::1 10.0.1.1");
  CHECK(chosen("^docker*,10.0.0.0/8,127.0.0.1") == "fd00::1 192.168.1.17");
  CHECK(chosen("eth0,ib0") == "10.0.0.1 fd00::1");       // hosts differ, the list is the same
  CHECK(chosen("^virbr0") == all);
}

void test_interface_list_that_selects_nothing_names_what_exists() {
  const std::string message = message_of<ConfigError>([] { chosen("etho"); });
  CHECK(contains(message, "'etho' matches no address"));
  CHECK(contains(message, "lo (127.0.0.1, 10.99.0.1), eth0 (10.0.0.1, fd00::1), eth1 (10.0.1.1)"));
  CHECK(contains(message_of<ConfigError>([] { chosen("10.0.0.2"); }), "eno1 (192.168.1.17)"));
  CHECK(contains(message_of<ConfigError>([] { chosen("^0.0.0.0/0,::/0"); }), "excludes every address"));
}

void test_interface_list_refuses_what_is_no_item() {
  const auto refused = [](const char* list, const char* words) {
    const std::string message = message_of<ConfigError>([&] { InterfaceList::parse(list); });
    CHECK(contains(message, words));
    CHECK(contains(message, "Use interface names (eth0)"));
  };
  refused("10.0.0.0/33", "'10.0.0.0/33' has a prefix length that is not 0 to 32");
  refused("fd00::/129", "not 0 to 128");
  refused("10.0.0.0/x", "prefix length");
  refused("10.0.0.0/", "prefix length");
  refused("10.0.0.0/8x", "prefix length");
  refused("eth0,", "empty item");
  refused(",eth0", "empty item");
  refused("eth0,^eth1", "^ inside the list");
  refused("^", "excludes nothing");
  refused("*", "neither an interface name");
  refused("et*h", "neither an interface name");
  refused("eth0/24", "neither an interface name");
  refused("eth0 eth1", "neither an interface name");
  refused("10.0.0.256:80", "neither an interface name");
  refused("a_name_too_long_for_linux", "neither an interface name");
}

void test_this_host() {
  const std::vector<LocalAddress> all = local_addresses();
  const auto at = std::find_if(all.begin(), all.end(), [](const LocalAddress& l) { return l.ip == ip("127.0.0.1"); });
  CHECK(at != all.end() && at->interface == "lo" && at->prefix == 8);
  CHECK(network_stack_id() == network_stack_id());
  CHECK(random_bytes16() != random_bytes16());
  CHECK(network_stack_id() != random_bytes16());
}

void test_port_holder_names_this_process() {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage;
  const Endpoint any_port{ip("127.0.0.1"), 0};
  const socklen_t length = any_port.to(storage);
  CHECK(::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) == 0);
  const std::uint16_t port = local_endpoint(fd.get()).port;
  CHECK(port != 0 && port_holder(port).empty());  // bound, but nobody listens
  CHECK(::listen(fd.get(), 1) == 0);
  CHECK(contains(port_holder(port), "pid " + std::to_string(::getpid()) + " ("));
}

void test_family_words() {
  CHECK(parse_family("auto") == Family::any && parse_family("4") == Family::v4 && parse_family("6") == Family::v6);
  for (const char* text : {"", "ipv4", "46", "AUTO"}) {
    CHECK(contains(message_of<ConfigError>([&] { parse_family(text); }), "it may be auto, 4 or 6"));
  }
}

}  // namespace

int main() {
  return hccl_py::testing::run_tests({
      {"addresses are parsed and printed", test_addresses_are_parsed_and_printed},
      {"kinds of addresses", test_kinds_of_addresses},
      {"endpoints survive the kernel's form", test_endpoints_survive_the_kernels_form},
      {"interface list selects", test_interface_list_selects},
      {"interface list that selects nothing names what exists",
       test_interface_list_that_selects_nothing_names_what_exists},
      {"interface list refuses what is no item", test_interface_list_refuses_what_is_no_item},
      {"this host", test_this_host},
      {"port holder names this process", test_port_holder_names_this_process},
      {"family words", test_family_words},
  });
}
