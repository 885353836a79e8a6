// SPDX-License-Identifier: Apache-2.0
// The listener, the address it publishes, and the ways that lead from one rank's addresses to another's.
#include "hccl_py/tcp.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hccl_py/error.hpp"
#include "hccl_py/tcp_congestion.hpp"
#include "tcp_handshake.hpp"

namespace hccl_py {
namespace {

constexpr std::uint32_t kAddressMagic = 0x41545048;  // "HPTA"
constexpr std::size_t kAddressHeaderBytes = 44;
constexpr std::size_t kAddressEntryBytes = 24;
constexpr std::size_t kMaxEntries = 256;
constexpr int kMaxConnections = 128;

bool usable(Family wanted, Family family) { return wanted == Family::any || wanted == family; }

std::string quoted_range(const TcpOptions& options) {
  return std::to_string(options.first_port) + "-" + std::to_string(options.last_port);
}

void check(const TcpOptions& options) {
  if (options.connections < 1 || options.connections > kMaxConnections) {
    throw ConfigError("tcp_connections is " + std::to_string(options.connections) + "; it may be 1 to " +
                      std::to_string(kMaxConnections));
  }
  if (options.first_port > options.last_port || (options.first_port == 0 && options.last_port != 0)) {
    throw ConfigError("tcp_port_range is " + quoted_range(options) +
                      "; it may be two ports from 1 to 65535 in rising order, or 0-0 for any free port");
  }
}

// 0 if `fd` listens now, else an errno.
int listen_on(int fd, const Endpoint& endpoint, bool only_v6) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (endpoint.ip.family == Family::v6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, only_v6 ? 1 : 0);
  sockaddr_storage address;
  const socklen_t length = endpoint.to(address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) return errno;
  return ::listen(fd, SOMAXCONN) != 0 ? errno : 0;
}

template <typename T>
void put(std::vector<std::byte>& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

template <typename T>
T get(const std::byte*& at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) value = static_cast<T>(value | static_cast<T>(*at++) << (8 * i));
  return value;
}

template <std::size_t n>
void put(std::vector<std::byte>& out, const std::array<std::uint8_t, n>& bytes) {
  for (const std::uint8_t byte : bytes) out.push_back(static_cast<std::byte>(byte));
}

template <std::size_t n>
void get(const std::byte*& at, std::array<std::uint8_t, n>& bytes) {
  std::memcpy(bytes.data(), at, n);
  at += n;
}

}  // namespace

std::vector<std::byte> TcpAddress::encode() const {
  std::vector<std::byte> out;
  put(out, kAddressMagic);
  put(out, version);
  put(out, oldest_version);
  put(out, port);
  put(out, connections);
  put(out, static_cast<std::uint16_t>(entries.size()));
  put(out, stack);
  put(out, salt);
  for (const Entry& entry : entries) {
    put(out, static_cast<std::uint8_t>(entry.ip.family));
    put(out, static_cast<std::uint8_t>(entry.prefix));
    put(out, std::uint16_t{0});
    put(out, entry.ip.scope);
    put(out, entry.ip.bytes);
  }
  return out;
}

TcpAddress TcpAddress::decode(std::span<const std::byte> bytes) {
  const auto wrong = [](const std::string& what) { return ConfigError("not the address of a tcp listener: " + what); };
  const std::byte* at = bytes.data();
  if (bytes.size() < kAddressHeaderBytes) throw wrong(std::to_string(bytes.size()) + " bytes");
  if (get<std::uint32_t>(at) != kAddressMagic) throw wrong("wrong magic");
  TcpAddress address;
  address.version = get<std::uint8_t>(at);
  address.oldest_version = get<std::uint8_t>(at);
  address.port = get<std::uint16_t>(at);
  address.connections = get<std::uint16_t>(at);
  const std::size_t num_entries = get<std::uint16_t>(at);
  get(at, address.stack);
  get(at, address.salt);
  if (num_entries > kMaxEntries || bytes.size() != kAddressHeaderBytes + num_entries * kAddressEntryBytes) {
    throw wrong(std::to_string(bytes.size()) + " bytes for " + std::to_string(num_entries) + " addresses");
  }
  for (std::size_t i = 0; i < num_entries; ++i) {
    Entry entry;
    entry.ip.family = static_cast<Family>(get<std::uint8_t>(at));
    entry.prefix = get<std::uint8_t>(at);
    at += 2;
    entry.ip.scope = get<std::uint32_t>(at);
    get(at, entry.ip.bytes);
    if ((entry.ip.family != Family::v4 && entry.ip.family != Family::v6) || entry.prefix > entry.ip.bits()) {
      throw wrong("an address of an unknown family");
    }
    address.entries.push_back(entry);
  }
  return address;
}

std::string TcpAddress::text() const {
  std::string text;
  for (const Entry& entry : entries) text += (text.empty() ? "" : ", ") + entry.ip.text();
  return text + " port " + std::to_string(port);
}

TcpListener::TcpListener(const TcpOptions& options) : options_(options) {
  check(options);
  const InterfaceList list = InterfaceList::parse(options.interfaces);
  bool any_v4 = false, any_v6 = false;
  for (LocalAddress& local : list.select(local_addresses())) {
    if (!usable(options.family, local.ip.family) || locals_.size() == kMaxEntries) continue;
    (local.ip.family == Family::v4 ? any_v4 : any_v6) = true;
    locals_.push_back(std::move(local));
  }
  if (locals_.empty()) {
    const std::string reason = options.family == Family::any ? "no interface that is up has an IP address"
                               : options.family == Family::v4 ? "no IPv4 address" : "no IPv6 address";
    throw TransportUnavailableError("tcp: " + reason + (list.empty() ? "" : " among tcp_interfaces '" +
                                    options.interfaces + "'"), reason);
  }

  // One socket for all: on the one chosen address, else on every address of the families in question.
  Endpoint endpoint;
  endpoint.ip.family = any_v6 ? Family::v6 : Family::v4;
  if (locals_.size() == 1) endpoint.ip = locals_.front().ip;
  int error = 0;
  std::string holders;
  for (int port = options.first_port; port <= options.last_port && !fd_; ++port) {
    endpoint.port = static_cast<std::uint16_t>(port);
    const int domain = endpoint.ip.family == Family::v4 ? AF_INET : AF_INET6;
    fd_ = Fd(::socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    error = fd_ ? listen_on(fd_.get(), endpoint, !any_v4) : errno;
    if (error == 0) break;
    fd_.close();
    if (error != EADDRINUSE) break;
    const std::string holder = port - options.first_port < 4 ? port_holder(endpoint.port) : "";
    if (!holder.empty()) holders += (holders.empty() ? "; " : ", ") + std::to_string(port) + " is held by " + holder;
  }
  if (!fd_) {
    if (error == EADDRINUSE) {
      throw TransportUnavailableError("tcp: no free port in tcp_port_range " + quoted_range(options) + holders +
                                          "; give at least one port for each rank of a host, or 0-0 for any",
                                      "no free port in " + quoted_range(options));
    }
    throw TransportUnavailableError("tcp: cannot listen on " + endpoint.text() + ": " + errno_text(error),
                                    errno_text(error));
  }
  size_buffers(fd_.get(), options.send_buffer_bytes, options.recv_buffer_bytes);  // accepted sockets inherit them
  if (!options.congestion.empty() && !set_congestion(fd_.get(), options.congestion)) {  // and this
    throw ConfigError("tcp_congestion is " + options.congestion + ": " + errno_text(errno) +
                      "; see net.ipv4.tcp_allowed_congestion_control");
  }

  address_.stack = network_stack_id();
  address_.salt = random_bytes16();
  address_.port = local_endpoint(fd_.get()).port;
  address_.connections = static_cast<std::uint16_t>(options.connections);
  for (const LocalAddress& local : locals_) address_.entries.push_back({local.ip, local.prefix});
}

std::vector<TcpCandidate> tcp_candidates(const std::vector<LocalAddress>& locals, const TcpOptions& options,
                                         const TcpAddress& own, const std::vector<TcpAddress>& all, int peer,
                                         std::vector<std::string>& unused) {
  const TcpAddress& theirs = all[static_cast<std::size_t>(peer)];
  const bool same_stack = theirs.stack == own.stack;
  const auto other_owner = [&](const IpAddress& ip) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].entries.empty() || all[rank].stack == theirs.stack) continue;
      for (const TcpAddress::Entry& entry : all[rank].entries) {
        if (entry.ip == ip) return static_cast<int>(rank);
      }
    }
    return -1;
  };
  enum Class : int { loopback, same_network, routed, link_local };
  std::vector<std::pair<Class, TcpCandidate>> found;
  for (const TcpAddress::Entry& entry : theirs.entries) {
    const auto skip = [&](const std::string& why) { unused.push_back(entry.ip.text() + ": not tried, " + why); };
    TcpCandidate candidate;
    candidate.remote = {entry.ip, theirs.port};
    if (!same_stack) candidate.remote.ip.scope = 0;
    const auto add = [&](Class kind, const LocalAddress* source) {
      candidate.has_source = source != nullptr;
      if (source != nullptr) candidate.source = source->ip;
      found.emplace_back(kind, candidate);
    };
    const auto first_local = [&](auto&& accepts) {
      const auto at = std::find_if(locals.begin(), locals.end(), accepts);
      return at == locals.end() ? nullptr : &*at;
    };
    const auto of_family = [&](const LocalAddress& l) { return l.ip.family == entry.ip.family; };
    if (!usable(options.family, entry.ip.family)) {
      skip("tcp_family excludes it here");
    } else if (first_local(of_family) == nullptr) {
      skip(entry.ip.family == Family::v4 ? "no IPv4 address is usable here" : "no IPv6 address is usable here");
    } else if (entry.ip.is_loopback()) {
      const auto* local = first_local([&](const LocalAddress& l) { return of_family(l) && l.ip.is_loopback(); });
      if (!same_stack) {
        skip("it is the other host's loopback");
      } else if (local == nullptr) {
        skip("tcp_interfaces excludes loopback here");
      } else {
        add(loopback, nullptr);
      }
    } else if (const int owner = same_stack ? -1 : other_owner(entry.ip); owner >= 0) {
      skip("rank " + std::to_string(owner) + " on another host has the same address");
    } else if (entry.ip.is_link_local() && entry.ip.family == Family::v6 && !same_stack) {
      // Which of our links leads there is unknown: try each.
      bool any = false;
      for (const LocalAddress& local : locals) {
        if (!of_family(local) || !local.ip.is_link_local()) continue;
        candidate.remote.ip.scope = local.ip.scope;
        add(link_local, &local);
        any = true;
      }
      if (!any) skip("no link-local address is usable here");
    } else if (entry.ip.is_link_local()) {
      add(link_local, nullptr);
    } else {
      const auto* near = first_local([&](const LocalAddress& l) {
        return !l.ip.is_loopback() && l.prefix < l.ip.bits() && l.ip.same_network(entry.ip, l.prefix);
      });
      const auto* chosen = first_local([&](const LocalAddress& l) {
        return of_family(l) && !l.ip.is_loopback() && !l.ip.is_link_local();
      });
      const auto* source = near != nullptr || options.interfaces.empty() ? near : chosen;
      add(near != nullptr ? same_network : routed, same_stack ? nullptr : source);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<TcpCandidate> candidates;
  for (auto& [kind, candidate] : found) candidates.push_back(candidate);
  return candidates;
}

JobId job_id_of(std::span<const std::vector<std::byte>> addresses) {
  // Two FNV-1a lanes with different starts; the lengths are mixed in, so that boundaries count.
  std::uint64_t lanes[2] = {0xcbf29ce484222325U, 0x84222325cbf29ce4U};
  const auto mix = [&](std::uint64_t byte) {
    for (std::uint64_t& lane : lanes) lane = (lane ^ byte) * 0x100000001b3U;
    lanes[1] ^= lanes[1] >> 29;
  };
  for (const std::vector<std::byte>& address : addresses) {
    for (std::size_t i = 0; i < 8; ++i) mix(address.size() >> (8 * i) & 0xff);
    for (const std::byte byte : address) mix(static_cast<std::uint64_t>(byte));
  }
  JobId job;
  for (std::size_t i = 0; i < 16; ++i) job[i] = static_cast<std::uint8_t>(lanes[i / 8] >> (8 * (i % 8)));
  return job;
}

}  // namespace hccl_py
