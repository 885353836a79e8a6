// SPDX-License-Identifier: Apache-2.0
// One rank's membership in a group: its pipes to the others, its programs, and the queue of its work. Whoever holds
// the driver token drives all of it; nobody else touches a pipe. Blocking calls drive in the caller.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "hccl_py/contract.hpp"
#include "hccl_py/executor.hpp"
#include "hccl_py/fork.hpp"
#include "hccl_py/loopback.hpp"
#include "hccl_py/op.hpp"
#include "hccl_py/placement.hpp"
#include "hccl_py/point_to_point.hpp"
#include "hccl_py/segments.hpp"
#include "hccl_py/shared_fold.hpp"
#include "hccl_py/shm.hpp"
#include "hccl_py/slot_call.hpp"
#include "hccl_py/tcp.hpp"
#include "hccl_py/tcp_trace.hpp"
#include "hccl_py/waiter.hpp"

namespace hccl_py {

class Progress;

struct GroupOptions {
  bool use_shm = true;
  bool use_tcp = true;
  std::string host_id;                  // empty: found out; ranks share memory only with ranks of the same host id
  std::uint32_t usable_cpus = 1;
  std::int32_t spins = -1;              // -1: chosen from ranks and processors
  std::size_t segment_bytes = 64 * 1024;
  double timeout_s = 600;
  bool strict = false;  // between hosts the contract is checked before anything moves
  // Asked now and then by a thread that waits; true: give up (a signal came). It may call abort() and close().
  bool (*interrupted)() = nullptr;
  ShmOptions shm;
  TcpOptions tcp;
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  // With a hub: transport `loopback`; join() and connect() are not needed then.
  Group(std::uint32_t rank, std::uint32_t world, GroupOptions options, std::shared_ptr<Hub> hub);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Connecting, in three steps with an exchange among all ranks before each: address() -> join() -> connect().
  std::vector<std::byte> address() const;
  // Shares memory with the ranks of this host. Never throws for want of shared memory: the report says so and the
  // ranks of a host of which one could not go by TCP instead.
  std::vector<std::byte> join(const std::vector<std::vector<std::byte>>& addresses, double timeout_s);
  void connect(const std::vector<std::vector<std::byte>>& reports, double timeout_s);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t world() const { return world_; }
  std::uint32_t channels() const { return ports_ ? ports_->channels() : 0; }
  const std::vector<std::uint32_t>& local_ranks() const { return local_ranks_; }
  // What the user should know: why memory is not shared, for instance. Empty if nothing.
  const std::string& warning() const { return warning_; }
  // "loopback", "shm" or "tcp"; "self" for this rank.
  const char* transport_to(std::uint32_t peer) const;
  // Sends to `peer` by this channel of plans at most so many bytes a second; 0: as fast as it goes. Only tcp can do it:
  // false for other transports. Any time.
  bool pace(std::uint32_t peer, std::uint32_t channel, double most_Bps);
  // What was sent to each peer of another host, by each connection (0: messages; 1 + channel: plans). Any time.
  struct ConnectionTrace {
    std::uint32_t peer = 0, connection = 0;
    TcpTrace counted;
  };
  std::vector<ConnectionTrace> trace() const;
  std::uint32_t slot_bytes() const { return board_ ? board_.slot_bytes() : 0; }

  std::uint32_t load_program(std::span<const std::byte> bytes);
  // For blocks of up to upto_bytes[i] bytes, programs[i]; ascending, the last one for everything above.
  // Calls with uneven blocks have tables of their own.
  void set_table(Collective collective, std::uint32_t root, bool uneven, std::vector<std::uint64_t> upto_bytes,
                 const std::vector<std::uint32_t>& programs);

  // Checks an op against this group and finds its program; throws ConfigError or BrokenGroupError. False if no table
  // was set for it. Nothing has moved then.
  bool prepare(Op& op) const;
  // After prepare(), of an op that will be run again and again: works out now what would be looked up each time.
  void settle(Op& op) const;
  // Throws BrokenGroupError unless the group can be used.
  void check_usable() const;
  // Runs a collective or a message in the caller, at once and without an allocation; afterwards it is no longer pending.
  // False, and nothing done, if other work is under way: start() it then.
  bool run_now(Op& op);
  // The same in two parts. The first returns within microseconds; if it says under_way, the second must follow, in
  // the same thread, and may wait.
  enum class Begun : std::uint8_t { busy, over, under_way };
  Begun begin_now(Op& op) { return op.kind == Op::Kind::collective ? begin_collective(op) : begin_messages({&op, nullptr}); }
  void end_now(Op& op);
  // For messages: two at once, a send and a receive.
  Begun begin_messages(std::array<Op*, 2> ops);
  void end_messages();
  // Hands the op over; the group keeps it until it is no longer pending.
  void start(std::shared_ptr<Op> op);
  // Waits for a started op; false if `timeout_s` (if not negative) passed first, or a signal came; the op goes on then.
  bool wait(Op& op, double timeout_s);
  // True if a started op is over; moves it on a little if nobody else does.
  bool test(Op& op);
  std::int64_t deadline(double timeout_s) const;
  double timeout_s() const { return options_.timeout_s; }

  // For DesyncError: says where this rank called, reads where another one of this host did ("" if it does not say in time).
  // Memory of this rank that the ranks of its host can reach directly; it may outlive the group.
  void share(const std::shared_ptr<Segment>& segment) { own_segments_.add(segment); }
  // Why the private memory of ranks of this host cannot be read; empty if it can, or there are none.
  const std::string& no_pulls() const { return no_pulls_; }
  // Of the last collective that went by the executor or in shares.
  const Traffic& traffic() const { return traffic_; }

  void post_site(std::uint64_t sequence, const std::string& text);
  std::string peer_site(std::uint32_t peer, std::uint64_t sequence, double timeout_s) const;

  // Fails all work, here and at the peers. Any thread, any time, twice is fine.
  void abort(const std::string& why);
  // Says goodbye; unfinished work fails. Idempotent.
  void close();

  // For the progress thread.
  bool try_token() { return token_.exchange(1, std::memory_order_acquire) == 0; }
  void release_token();          // and sees to it that what is left is driven
  void release_token_quietly();  // by the progress thread, which goes on itself
  // With `all` false it looks for messages only if one is waited for.
  bool drive(bool all = true);
  bool has_work() const { return pending_.load(std::memory_order_acquire) != 0; }
  void check_health();
  bool prepare_sleep(Sleeping how);
  void end_sleep();
  int sleep_fd() const { return poller_.fd(); }
  bool has_wires() const { return remote_; }

 private:
  enum class Phase : std::uint8_t { idle, following, arriving, checking, ready, running, sharing };

  struct Table {
    std::vector<std::uint64_t> upto_bytes;
    std::vector<Executor*> executors;
  };

  const Table* table_of(const Call& call) const;
  bool local(std::uint32_t peer) const { return local_index_[peer] >= 0; }
  void check_buffers(const Call& call, const ProgramHeader& header) const;
  void set_up_board(Board board);
  void connect_remote(const std::vector<int>& peers, double timeout_s);
  void drive_until(Op& op);
  bool drive_collective();
  void begin(Op& op);
  bool follow() const;
  void enter();
  bool arrive();
  void find_shared();
  bool all_shared() const;
  void fold_slots();
  bool drive_shared_fold(bool moved);
  bool begin_run();
  Begun begin_collective(Op& op);
  bool take_token();
  SlotCall* slot_call_of(const Op& op);
  bool only_published() const;
  void finish_current();
  void fail_current(Failure why);
  void take_in();
  Failure cause_of(Failure lost);
  void break_down(Failure why);
  void spread(const Failure& why);
  void push_out();
  Failure from_board() const;
  void sleep(std::int64_t most_ns);
  bool poll_wires(std::int64_t most_ns);
  bool look_at_wires();
  void submit(std::shared_ptr<Op> op);
  void notify_progress();
  void retire_current();
  void wake_waiters();
  Failure timeout_failure(const Op& op) const;
  Failure lost_peer() const;
  Failure broken_failure() const;
  Failure abort_failure() const;
  Failure interrupt_failure() const;
  [[noreturn]] void throw_broken() const;

  const std::uint32_t rank_;
  const std::uint32_t world_;
  const std::uint64_t most_elements_ = (std::uint64_t{1} << 58) / std::max(world_, 1u);  // of a block
  GroupOptions options_;
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Progress> progress_;

  // connecting
  BellSocket bell_;
  std::unique_ptr<ShmDoor> door_;
  std::unique_ptr<TcpListener> listener_;
  std::uint64_t nonce_;
  std::vector<std::vector<std::byte>> addresses_;

  // wires
  Poller poller_;
  Readiness bell_readiness_;
  std::unique_ptr<ShmHost> shm_;
  TcpMesh mesh_;
  // The board of a rank that shares memory with nobody.
  struct BoardMemory {
    static constexpr std::uint32_t kSlotBytes = 64;
    alignas(64) std::byte bytes[sizeof(BoardHeader) + sizeof(BoardRank) + 2 * kSlotBytes] = {};
  };
  std::unique_ptr<BoardMemory> own_board_memory_;
  Board board_;
  Bells own_bells_;
  const Bells* bells_ = nullptr;
  std::vector<std::uint32_t> local_ranks_;
  std::vector<int> local_index_;  // by rank; -1: another host
  std::uint32_t my_local_ = 0;
  bool remote_ = false;  // some peer is on another host
  std::uint32_t looks_ = 0;
  std::unique_ptr<Ports> ports_;
  std::uint32_t communicator_ = 0;
  std::string warning_;
  std::string no_pulls_;

  // shared memory
  OwnSegments own_segments_;
  Lending lending_;
  std::vector<std::byte*> landings_;  // by rank
  Traffic traffic_;

  // programs
  Scratch scratch_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::map<std::tuple<Collective, std::uint32_t, bool>, Table> tables_;
  std::array<const Table*, kNumCollectives> usual_tables_{};  // of those, for root 0 and even blocks
  std::array<std::shared_ptr<SlotCall>, 64> slot_calls_;  // the latest, by a hash

  // work
  std::atomic<std::uint32_t> token_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<std::uint32_t> events_{0};   // futex word: something finished or the token is free
  std::atomic<std::uint32_t> pending_{0};  // ops queued or in progress
  std::mutex inbox_mutex_;                 // submissions of other threads
  std::deque<std::shared_ptr<Op>> inbox_;
  std::atomic<std::uint32_t> inbox_size_{0};
  std::deque<std::shared_ptr<Op>> collectives_;
  std::vector<std::shared_ptr<Op>> messages_;
  std::array<Op*, 2> messages_now_{};  // the caller's own
  Op* current_ = nullptr;
  Phase phase_ = Phase::idle;
  std::uint32_t arrived_ = 0;
  bool settled_ = true;  // false after a mismatch, which the others may not have seen yet
  std::unique_ptr<ContractExchange> contract_;  // strict mode, if there are other hosts
  Failure disagreement_;
  Fingerprint mine_{};
  std::uint64_t next_sequence_ = 1;
  std::unique_ptr<PointToPoint> p2p_;
  Waiter waiter_;
  Placement placement_;
  std::uint32_t first_spins_ = 0;  // of begin_now()
  std::int64_t next_liveness_ns_ = 0;
  std::int64_t next_interrupt_ns_ = 0;
  SlotCall* slot_call_ = nullptr;  // if the current collective goes by the board, in one round
  std::unique_ptr<SharedFold> shared_fold_;
  bool sharing_ = false;      // the current collective goes by the board, in rounds of shares
  std::uint64_t rounds_ = 0;  // of the slots, so far

  std::atomic<bool> broken_{false};
  mutable std::atomic<bool> told_{false};  // some call has failed because of it
  mutable std::mutex broken_mutex_;
  Failure broken_why_;
  std::string abort_text_;
  std::atomic<bool> abort_asked_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> left_{false};                // close() has the token, for good
  std::atomic<std::thread::id> interrupting_{};  // the driver, while it asks whether a signal came
  const std::uint32_t forks_ = Forks::count();  // a forked child has no part in the group
};

}  // namespace hccl_py
