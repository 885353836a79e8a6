// SPDX-License-Identifier: Apache-2.0
// Runs one program: moves its open steps on, segment by segment, as far as pipes and dependencies allow. Never blocks,
// never allocates while running. One executor per loaded program; a group runs one collective at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "hccl_py/call.hpp"
#include "hccl_py/ports.hpp"
#include "hccl_py/program.hpp"
#include "hccl_py/reduce.hpp"
#include "hccl_py/segments.hpp"

namespace hccl_py {

// Memory for SCRATCH, shared by the programs of a group; grows, never shrinks.
using Scratch = std::vector<std::byte>;

// What a run knows of memory that ranks of a host share, and from which size on messages go by loan. Empty: not at all.
struct Lending {
  SharedPlace input, output;               // this rank's buffers
  std::span<std::byte* const> landings{};  // by rank: its OUTPUT, as mapped here; nullptr where it is private
  std::uint64_t shared_bytes = 0;          // least message from shared memory; 0: none
  std::uint64_t private_bytes = 0;         // least message from private memory; 0: none
};

// How often the engine touched memory in a run, in bytes: what algorithms are judged by. Headers do not count.
struct Traffic {
  std::uint64_t read = 0;     // by this rank from its own memory or a peer's
  std::uint64_t written = 0;  // by this rank to its own memory or a peer's
  std::uint64_t staged = 0;   // of those written, into rings or staging memory
};

class Executor {
 public:
  enum class Outcome : std::uint8_t { moved, idle, done, failed };

  // Throws PlanError if the program needs channels that `ports` lacks.
  Executor(Program program, Ports& ports, Scratch& scratch, std::size_t segment_bytes, std::uint32_t communicator);

  const Program& program() const { return program_; }
  // Sets up a run. `mine` is the fingerprint of the call. May grow SCRATCH. False, with failure() set, if the counts
  // of the call do not fit the program.
  bool begin(const Call& call, const Fingerprint& mine, const Lending& lending = {});
  // One pass over the open steps.
  Outcome advance();
  const Failure& failure() const { return failure_; }
  // The first peer that an open step waits for, or -1; `only`: no other counts. And the first unfinished step.
  int waiting_for(int only = -1) const;
  int waiting_step() const { return static_cast<int>(first_open_); }
  // True once a byte of OUTPUT may have been written or a message sent.
  bool touched() const { return touched_; }
  // Of the last run.
  const Traffic& traffic() const { return traffic_; }

 private:
  enum class Shape : std::uint8_t { move_local, make_local, make_peer };
  enum class Way : std::uint8_t { stream, lent, landed };  // a message: through the pipe, or one of the kinds of Loan
  struct RunOperand {
    std::byte* memory = nullptr;   // local operands
    SendPort* send = nullptr;      // peer targets
    RecvPort* recv = nullptr;      // peer sources
    std::uint32_t ordinal = 0;     // which message of its port
    std::uint32_t head_left = 0;   // bytes of header still to go
    std::uint64_t moved = 0;       // bytes of payload
    Way way = Way::stream;
    std::uint64_t base = 0;        // lent or landed: position of its first byte among the loans of its channel
    std::byte* landing = nullptr;  // landed
    SharedPlace place;             // lent: where it lies
  };
  struct RunStep {
    std::uint64_t bytes = 0;
    std::uint64_t made = 0;      // bytes folded or copied
    std::uint64_t progress = 0;  // bytes with which the step is done altogether
    std::span<RunOperand> sources, targets;
    RunOperand* local_target = nullptr;
    Shape shape = Shape::move_local;
    bool complete = false;
    bool landing = false;      // a fold whose result goes to memory only: ours and that of peers
    bool stream_past = false;  // OUTPUT is too large to be read again from a cache: stores go past it
    bool wire = false;  // a source comes from another host
  };

  static std::uint32_t head_bytes(bool remote, std::uint32_t ordinal);

  using Head = std::array<std::byte, kFrameHeaderBytes + kFingerprintBytes>;
  static constexpr std::size_t kLandBytes = 8 * 1024;             // with all its copies it stays in the first-level cache
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  void lay_out(std::vector<std::uint64_t>& starts, std::uint32_t blocks, std::uint64_t count,
               const std::uint64_t* counts, std::size_t element) const;
  bool place(const Operand& operand, const Call& call, RunOperand& run, std::uint64_t& bytes);
  std::uint64_t limit(std::size_t i) const;
  bool advance_step(std::size_t i);
  std::span<const std::byte> encode_head(const RunOperand& target, std::uint64_t total, Head& head) const;
  bool push(RunOperand& target, std::size_t step, const std::byte* memory, std::uint64_t upto, std::uint64_t total);
  void choose_ways(const Call& call, const Lending& lending);
  bool open_loan(RunOperand& target, std::size_t step, std::uint64_t total);
  bool lend(RunOperand& target, std::size_t step, std::uint64_t upto, std::uint64_t total);
  bool land(RunOperand& target, std::size_t step, const std::byte* memory, std::uint64_t upto, std::uint64_t total);
  std::size_t fold_and_land(RunStep& step, std::size_t want);
  std::size_t gather(RunStep& step, std::size_t want);
  void take(RunStep& step, std::size_t bytes);
  bool open(RunOperand& source, std::size_t step, std::uint64_t total);
  bool make(RunStep& step, std::size_t i, std::uint64_t upto);
  std::size_t fold_segment(RunStep& step, std::size_t want, std::byte* out);
  bool borrow(const RunOperand& source, std::size_t step, std::uint64_t total);
  bool check_header(RunOperand& source, std::size_t step, std::uint64_t total, std::span<const std::byte> head);
  void fail(FailureKind kind, int culprit, std::size_t step, std::string text);

  Program program_;
  Scratch& scratch_;
  std::size_t segment_bytes_;
  std::uint32_t communicator_;
  Isa isa_;
  Fingerprint mine_{};
  Failure failure_;
  bool in_place_ = false;
  bool touched_ = false;
  Traffic traffic_;
  std::size_t element_ = 1;
  FoldFn fold_ = nullptr;
  double scale_ = 1;
  std::size_t first_open_ = 0;
  std::vector<std::uint64_t> input_starts_, output_starts_, scratch_starts_;
  std::vector<RunOperand> operands_;
  std::vector<RunStep> steps_;
  std::vector<FoldSource> fold_sources_;
  std::vector<SendPort*> used_send_;
  std::vector<RecvPort*> used_recv_;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> fold_staging_;  // of what goes past the cache
};

}  // namespace hccl_py
