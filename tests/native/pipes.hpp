// SPDX-License-Identifier: Apache-2.0
// A pipe in memory that is as awkward as pipes may be: small, it takes and gives a few bytes at a time, may hold back
// what was written until flush(), and can be closed or broken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "hccl_py/pipe.hpp"

namespace hccl_py::testing {

class AwkwardPipe : public SendPipe, public RecvPipe {
 public:
  explicit AwkwardPipe(std::size_t capacity = 200, std::size_t chunk = 13) : capacity_(capacity), chunk_(chunk) {}

  std::span<std::byte> reserve(std::size_t want) override {
    staging_.resize(broken() ? 0 : std::min({want, chunk_ < 8 ? std::size_t{8} : chunk_, room()}));
    return staging_;
  }
  void commit(std::size_t bytes) override { append({staging_.data(), bytes}); }
  std::size_t write(std::span<const std::byte> head, std::span<const std::byte> body, bool) override {
    if (broken() || blocked) return 0;
    std::size_t n = std::min({chunk_, room(), head.size()});
    append(head.first(n));
    if (n < head.size()) return n;
    const std::size_t m = std::min({chunk_, room(), body.size()});
    append(body.first(m));
    return n + m;
  }
  bool flush() override {
    if (holds_back) return visible_ == bytes_.size();
    visible_ = bytes_.size();
    return true;
  }
  std::span<const std::byte> peek(std::size_t want, std::size_t at_least = 1) override {
    starved_ = visible_ < at_least;
    if (starved_) return {};
    return std::span<const std::byte>(bytes_).first(std::min({want, std::max(chunk_, at_least), visible_}));
  }
  void consume(std::size_t bytes) override {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(bytes));
    visible_ -= bytes;
  }
  std::size_t read(std::span<std::byte> out) override {
    const std::span<const std::byte> in = peek(out.size());
    std::copy(in.begin(), in.end(), out.begin());
    const std::size_t n = in.size();
    consume(n);
    return n;
  }
  // One object is both ends. Closed means that the reader wanted more than there is, as over a network.
  PipeState state() const override { return state_ == PipeState::closed && visible_ > 0 && !starved_ ? PipeState::open : state_; }

  void end(PipeState state) { state_ = state; }
  std::size_t size() const { return bytes_.size(); }

  bool blocked = false;     // takes nothing by write(), though there is room
  bool holds_back = false;  // written bytes stay here until flush() finds this false

 private:
  bool broken() const { return state_ != PipeState::open; }
  std::size_t room() const { return capacity_ - std::min(capacity_, bytes_.size()); }
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    if (!holds_back) visible_ = bytes_.size();
  }

  std::size_t capacity_, chunk_;
  std::vector<std::byte> bytes_;
  std::size_t visible_ = 0;
  std::vector<std::byte> staging_;
  bool starved_ = false;
  PipeState state_ = PipeState::open;
};

}  // namespace hccl_py::testing
