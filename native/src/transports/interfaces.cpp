// SPDX-License-Identifier: Apache-2.0
// The local addresses, the user's list of interfaces, and who holds a port: what is asked of the system once, at start.
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "hccl_py/error.hpp"
#include "hccl_py/socket.hpp"

namespace hccl_py {
namespace {

int prefix_of(const sockaddr* netmask, const IpAddress& ip) {
  if (netmask == nullptr) return ip.bits();
  sockaddr_storage storage{};
  std::memcpy(&storage, netmask, ip.family == Family::v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  // Some kernels leave the family of a netmask empty.
  storage.ss_family = ip.family == Family::v4 ? AF_INET : AF_INET6;
  int prefix = 0;
  for (const std::uint8_t byte : Endpoint::from(storage).ip.bytes) prefix += __builtin_popcount(byte);
  return prefix;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

// "eth0 (10.0.0.1, fd00::1), lo (127.0.0.1)"
std::string names_of(const std::vector<LocalAddress>& addresses) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const LocalAddress& address : addresses) {
    auto at = names.begin();
    while (at != names.end() && at->first != address.interface) ++at;
    if (at == names.end()) {
      names.emplace_back(address.interface, address.ip.text());
    } else {
      at->second += ", " + address.ip.text();
    }
  }
  std::string text;
  for (const auto& [name, ips] : names) text += (text.empty() ? "" : ", ") + name + " (" + ips + ")";
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<LocalAddress> local_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw TransportUnavailableError("cannot list the network interfaces: " + errno_text(errno), errno_text(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<LocalAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    LocalAddress address{entry->ifa_name, Endpoint::from(storage).ip, 0};
    // An alias ("eth0:1") is the interface eth0.
    address.interface.resize(std::min(address.interface.size(), address.interface.find(':')));
    address.prefix = prefix_of(entry->ifa_netmask, address.ip);
    addresses.push_back(std::move(address));
  }
  return addresses;
}

bool InterfaceList::Item::matches(const LocalAddress& address) const {
  if (name.empty()) return ip.same_network(address.ip, prefix) && (ip.scope == 0 || ip.scope == address.ip.scope);
  return is_beginning ? address.interface.starts_with(name) : address.interface == name;
}

InterfaceList InterfaceList::parse(std::string_view text) {
  const auto wrong = [&](const std::string& item, const std::string& why) {
    return ConfigError("tcp_interfaces '" + std::string(text) + "': '" + item + "' " + why +
                       ". Use interface names (eth0), their beginnings (eth*), addresses (10.0.0.1) or networks "
                       "(10.0.0.0/24), separated by commas; ^ in front of the list excludes all of it");
  };
  InterfaceList list;
  list.text_ = trimmed(text);
  std::string_view rest = list.text_;
  if (rest.starts_with('^')) {
    list.exclude_ = true;
    rest.remove_prefix(1);
    if (trimmed(rest).empty()) throw wrong("^", "excludes nothing");
  }
  if (rest.empty()) return list;
  for (bool last = false; !last;) {
    const auto comma = rest.find(',');
    last = comma == std::string_view::npos;
    const std::string word = trimmed(rest.substr(0, comma));
    if (!last) rest.remove_prefix(comma + 1);
    if (word.empty()) throw wrong(word, "is an empty item");
    if (word.front() == '^') throw wrong(word, "has a ^ inside the list");
    Item item;
    const auto slash = word.find('/');
    if (const auto ip = IpAddress::parse(std::string_view(word).substr(0, slash))) {
      item.ip = *ip;
      item.prefix = ip->bits();
      if (slash != std::string::npos) {
        const char* end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data() + slash + 1, end, item.prefix);
        if (error != std::errc{} || at != end || item.prefix < 0 || item.prefix > ip->bits()) {
          throw wrong(word, "has a prefix length that is not 0 to " + std::to_string(ip->bits()));
        }
      }
    } else {
      item.name = word;
      item.is_beginning = word.back() == '*';
      if (item.is_beginning) item.name.pop_back();
      const bool odd = item.name.find_first_of("/*: \t") != std::string::npos;
      if (item.name.empty() || item.name.size() >= IF_NAMESIZE || odd) {
        throw wrong(word, "is neither an interface name nor an address nor a network");
      }
    }
    list.items_.push_back(std::move(item));
  }
  return list;
}

std::vector<LocalAddress> InterfaceList::select(const std::vector<LocalAddress>& all) const {
  if (items_.empty()) return all;
  std::vector<LocalAddress> selected;
  for (const LocalAddress& address : all) {
    bool listed = false;
    for (const Item& item : items_) listed = listed || item.matches(address);
    if (listed != exclude_) selected.push_back(address);
  }
  if (selected.empty()) {
    throw ConfigError("tcp_interfaces '" + text_ + "' " + (exclude_ ? "excludes every" : "matches no") +
                      " address of this host; it has: " + names_of(all));
  }
  return selected;
}

std::string port_holder(std::uint16_t port) {
  // /proc/net/tcp: "sl local_address rem_address st ... inode"; state 0A is LISTEN.
  std::string inode;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (inode.empty() && std::getline(file, line)) {
      std::istringstream fields(line);
      std::string local, state, skipped, number;
      fields >> skipped >> local >> skipped >> state;
      for (int i = 0; i < 6; ++i) fields >> number;
      const auto colon = local.find(':');
      if (state == "0A" && colon != std::string::npos && std::stoul(local.substr(colon + 1), nullptr, 16) == port) {
        inode = number;
      }
    }
  }
  if (inode.empty()) return "";
  const std::string wanted = "socket:[" + inode + "]";
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  while (const dirent* process = processes ? readdir(processes.get()) : nullptr) {
    const std::string pid = process->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string folder = "/proc/" + pid + "/fd";
    const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir(folder.c_str()), closedir);
    while (const dirent* entry = descriptors ? readdir(descriptors.get()) : nullptr) {
      char target[64];
      const ssize_t length = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target);
      if (length < 0 || std::string_view(target, static_cast<std::size_t>(length)) != wanted) continue;
      std::string name;
      std::getline(std::ifstream("/proc/" + pid + "/comm"), name);
      return "pid " + pid + " (" + name + ")";
    }
  }
  return "";
}

}  // namespace hccl_py
