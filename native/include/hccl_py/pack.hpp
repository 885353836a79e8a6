// SPDX-License-Identifier: Apache-2.0
// Length-prefixed packing of what ranks exchange while connecting. Not for the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "hccl_py/error.hpp"

namespace hccl_py {

class Packer {
 public:
  template <class T>
    requires std::is_integral_v<T>
  Packer& put(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof value);
    return *this;
  }
  Packer& put(std::span<const std::byte> bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Packer& put(const std::string& text) { return put(std::as_bytes(std::span(text))); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  std::vector<std::byte> get_bytes() {
    const std::span<const std::byte> bytes = next(get<std::uint32_t>());
    return {bytes.begin(), bytes.end()};
  }
  std::string get_text() {
    const std::span<const std::byte> bytes = next(get<std::uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> next(std::size_t n) {
    if (n > rest_.size()) throw ConfigError("a rank's address is cut off: do all ranks run the same version of hccl_py?");
    const std::span<const std::byte> out = rest_.first(n);
    rest_ = rest_.subspan(n);
    return out;
  }
  std::span<const std::byte> rest_;
};

}  // namespace hccl_py
