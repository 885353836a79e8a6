// SPDX-License-Identifier: Apache-2.0
// What a transport gives the engine: byte pipes. A pipe has one writer and one reader, is FIFO, and never blocks.
// Pipes know nothing of frames, plans or types. Only the holder of a group's driver token touches a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hccl_py {

enum class PipeState : std::uint8_t { open, closed, failed };

// The writing end.
class SendPipe {
 public:
  virtual ~SendPipe() = default;
  // Up to `want` contiguous bytes of room that can be filled right now; empty if there is none.
  virtual std::span<std::byte> reserve(std::size_t want) = 0;
  // Sends the first `bytes` of the last reserve(). At most what reserve() returned.
  virtual void commit(std::size_t bytes) = 0;
  // Sends `head` then `body` from memory, as much as fits now; returns the bytes taken of the two together.
  // With `more`, further bytes follow at once (a hint to coalesce).
  virtual std::size_t write(std::span<const std::byte> head, std::span<const std::byte> body, bool more) = 0;
  // Pushes what was taken but is still staged in this process; true once nothing is.
  virtual bool flush() = 0;
  virtual PipeState state() const = 0;
};

// The reading end.
class RecvPipe {
 public:
  virtual ~RecvPipe() = default;
  // The next bytes, in the transport's own memory: at most `want`, contiguous; empty if none have arrived. Where the
  // next `want` bytes are not contiguous, fewer are returned, but `at_least` <= 128 bytes (a header) are made contiguous
  // once they have arrived.
  virtual std::span<const std::byte> peek(std::size_t want, std::size_t at_least = 1) = 0;
  // Drops `bytes` of what peek() returned.
  virtual void consume(std::size_t bytes) = 0;
  // Receives up to out.size() bytes straight into `out`; returns how many came.
  virtual std::size_t read(std::span<std::byte> out) = 0;
  // closed: the peer closed and all it had sent has been read.
  virtual PipeState state() const = 0;
};

}  // namespace hccl_py
