// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/loopback.hpp"

#include <algorithm>
#include <deque>

#include "hccl_py/error.hpp"

namespace hccl_py {

class Hub::Queue {
 public:
  static constexpr std::size_t kCapacity = 64 * 1024;

  std::size_t room() {
    const std::lock_guard lock(mutex_);
    return kCapacity - bytes_.size();
  }
  std::size_t push(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t n = std::min(bytes.size(), kCapacity - bytes_.size());
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  // Copies the first bytes out, without taking them.
  std::size_t look(std::span<std::byte> out) {
    const std::lock_guard lock(mutex_);
    const std::size_t n = std::min(out.size(), bytes_.size());
    std::copy_n(bytes_.begin(), n, out.begin());
    return n;
  }
  void drop(std::size_t n) {
    const std::lock_guard lock(mutex_);
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(n));
  }

 private:
  std::mutex mutex_;
  std::deque<std::byte> bytes_;
};

class Hub::Sender final : public SendPipe {
 public:
  Sender(Queue& queue, const Bells& bells, std::uint32_t to) : queue_(queue), bells_(bells), to_(to) {}

  std::span<std::byte> reserve(std::size_t want) override {
    staging_.resize(std::min(want, queue_.room()));
    return staging_;
  }
  void commit(std::size_t bytes) override {
    queue_.push({staging_.data(), bytes});
    bells_.ring(to_);
  }
  std::size_t write(std::span<const std::byte> head, std::span<const std::byte> body, bool) override {
    std::size_t taken = queue_.push(head);
    if (taken == head.size()) taken += queue_.push(body);
    if (taken != 0) bells_.ring(to_);
    return taken;
  }
  bool flush() override { return true; }
  PipeState state() const override { return PipeState::open; }

 private:
  Queue& queue_;
  const Bells& bells_;
  std::uint32_t to_;
  std::vector<std::byte> staging_;
};

class Hub::Receiver final : public RecvPipe {
 public:
  Receiver(Queue& queue, const Bells& bells, std::uint32_t from) : queue_(queue), bells_(bells), from_(from) {}

  std::span<const std::byte> peek(std::size_t want, std::size_t at_least) override {
    seen_.resize(std::max(want, at_least));
    const std::size_t n = queue_.look(seen_);
    if (n < at_least) return {};
    return std::span<const std::byte>(seen_).first(std::min(n, want));
  }
  void consume(std::size_t bytes) override {
    queue_.drop(bytes);
    bells_.ring(from_);
  }
  std::size_t read(std::span<std::byte> out) override {
    const std::size_t n = queue_.look(out);
    if (n != 0) consume(n);
    return n;
  }
  PipeState state() const override { return PipeState::open; }

 private:
  Queue& queue_;
  const Bells& bells_;
  std::uint32_t from_;
  std::vector<std::byte> seen_;
};

Hub::Hub(std::uint32_t world, std::uint32_t slot_bytes, std::uint32_t channels)
    : world_(world),
      channels_(channels),
      memory_(std::make_unique<Line[]>(Board::bytes(world, slot_bytes) / sizeof(Line) + 1)),
      board_(memory_[0].bytes, world, slot_bytes) {
  if (world == 0 || channels == 0) throw ConfigError("a hub needs at least one rank and one channel");
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < world; ++rank) names.push_back(sockets_.emplace_back(std::make_unique<BellSocket>())->name());
  bells_ = Bells(board_, sockets_[0].get(), std::move(names));
  for (std::uint32_t from = 0; from < world; ++from)
    for (std::uint32_t to = 0; to < world; ++to)
      for (std::uint32_t channel = 0; channel < channels; ++channel) {
        Queue& queue = *queues_.emplace_back(std::make_unique<Queue>());
        senders_.push_back(std::make_unique<Sender>(queue, bells_, to));
        receivers_.push_back(std::make_unique<Receiver>(queue, bells_, from));
      }
}

Hub::~Hub() = default;

std::size_t Hub::index(std::uint32_t from, std::uint32_t to, std::uint32_t channel) const {
  return (std::size_t{from} * world_ + to) * channels_ + channel;
}

SendPipe& Hub::send_pipe(std::uint32_t from, std::uint32_t to, std::uint32_t channel) {
  return *senders_[index(from, to, channel)];
}

RecvPipe& Hub::recv_pipe(std::uint32_t from, std::uint32_t to, std::uint32_t channel) {
  return *receivers_[index(from, to, channel)];
}

}  // namespace hccl_py
