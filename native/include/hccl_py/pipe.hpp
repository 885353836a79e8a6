// SPDX-License-Identifier: Apache-2.0
// What a transport gives the engine: byte pipes. A pipe has one writer and one reader, is FIFO, and never blocks.
// Pipes know nothing of frames, plans or types. Only the holder of a group's driver token touches a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hccl_py {

// A message whose bytes do not pass through the pipe: only its header does. The two ends count its bytes instead.
struct Loan {
  enum class Kind : std::uint8_t {
    lent,    // the receiver takes them from the sender's memory
    landed,  // the sender puts them where the receiver wants them
  };
  Kind kind = Kind::lent;
  std::uint32_t segment = 0;  // lent: the sender's shared segment; 0: its private memory
  std::uint64_t at = 0;       // offset in the segment, or address
  std::uint64_t bytes = 0;
};

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

  // Loans, within a host. True if the peer can take messages from memory of this kind.
  virtual bool lends(bool shared) const { return static_cast<void>(shared), false; }
  // A message of `bytes` goes by loan; its header has been written. Returns the position of its first byte.
  virtual std::uint64_t open_loan(std::uint64_t bytes) { return bytes; }
  // The peer may count on everything before `position`. Small gains may be held back until flush().
  virtual void offer(std::uint64_t position) { static_cast<void>(position); }
  // Everything before this position is taken: the memory may be written again.
  virtual std::uint64_t taken() const { return 0; }
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
  // The next message goes by loan; its header has been consumed. Until its last byte has been consumed or read, peek,
  // consume and read are about the loan. Of a landed one only arrived() and consume() make sense. False if the memory
  // cannot be reached.
  virtual bool borrow(const Loan& loan) { return loan.bytes == 0; }
  // Bytes of the loan that are there and not consumed yet.
  virtual std::uint64_t arrived() { return 0; }
  // closed: the peer closed and all it had sent has been read.
  virtual PipeState state() const = 0;
};

}  // namespace hccl_py
