// SPDX-License-Identifier: Apache-2.0
// Group: how its work is checked, started and driven. group_collective.cpp has a collective from its start to its end,
// group_connect.cpp the connecting, group_trouble.cpp what happens when something goes wrong.
#include "hccl_py/group.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>

#include "hccl_py/error.hpp"
#include "hccl_py/progress.hpp"

namespace hccl_py {
namespace {

constexpr std::int64_t kLongestSleep_ns = 100'000'000, kShortestSleep_ns = 10'000'000;
constexpr std::int64_t kStartTime_ns = 100'000;           // that start() drives before it returns
constexpr std::uint32_t kTurnsPerLook = 8;                // of waiting for a collective, per look for messages

std::uint64_t elements_before(std::uint32_t block, std::uint64_t count, const std::uint64_t* counts) {
  return counts == nullptr ? block * count : std::accumulate(counts, counts + block, std::uint64_t{0});
}

// By which a table is searched. Ranks may know different blocks only: then they agree on the program for the largest.
std::uint64_t block_bytes(const Call& call, std::uint32_t world) {
  if (!call.uneven()) return call.count * size_of(call.dtype);
  const auto counts = known_counts(call, world);
  if (counts.empty()) return ~std::uint64_t{0};
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) / world * size_of(call.dtype);
}

}  // namespace

std::uint32_t Group::load_program(std::span<const std::byte> bytes) {
  Program program = Program::load(bytes);
  const ProgramHeader& h = program.header();
  if (h.world != world_ || h.rank != rank_)
    throw PlanError("program is for rank " + std::to_string(h.rank) + " of " + std::to_string(h.world) + ", this is rank " +
                    std::to_string(rank_) + " of " + std::to_string(world_));
  executors_.push_back(std::make_unique<Executor>(std::move(program), *ports_, scratch_, options_.segment_bytes, communicator_));
  return static_cast<std::uint32_t>(executors_.size() - 1);
}

void Group::set_table(Collective collective, std::uint32_t root, bool uneven, std::vector<std::uint64_t> upto_bytes,
                      const std::vector<std::uint32_t>& programs) {
  if (upto_bytes.empty() || upto_bytes.size() != programs.size() || !std::is_sorted(upto_bytes.begin(), upto_bytes.end()))
    throw PlanError("a plan table needs ascending sizes, one program each");
  Table table;
  table.upto_bytes = std::move(upto_bytes);
  for (std::uint32_t i : programs) {
    if (i >= executors_.size()) throw PlanError("a plan table names a program that was not loaded");
    if (executors_[i]->program().collective() != collective) throw PlanError("a plan table mixes collectives");
    table.executors.push_back(executors_[i].get());
  }
  Table& kept = tables_[{collective, root, uneven}];
  kept = std::move(table);
  if (root == 0 && !uneven) usual_tables_[static_cast<std::size_t>(collective)] = &kept;
}

const Group::Table* Group::table_of(const Call& call) const {
  if (call.root == 0 && !call.uneven()) return usual_tables_[static_cast<std::size_t>(call.collective)];
  const auto it = tables_.find({call.collective, call.root, call.uneven()});
  return it == tables_.end() ? nullptr : &it->second;
}

void Group::check_usable() const {
  if (Forks::count() == forks_ && !closed_.load(std::memory_order_relaxed) && !broken_.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (Forks::count() != forks_)
    throw BrokenGroupError("this group belongs to the parent of this process, a forked child has no part in it: connect one after the fork");
  if (closed_.load()) throw BrokenGroupError("this group was closed");
  throw_broken();
}

bool Group::prepare(Op& op) const {
  check_usable();
  if (op.kind != Op::Kind::collective) {
    const bool any = op.kind == Op::Kind::recv && op.peer == -1;
    if (!any && (op.peer < 0 || static_cast<std::uint32_t>(op.peer) >= world_))
      throw ConfigError("rank " + std::to_string(op.peer) + " is outside a world of " + std::to_string(world_));
    return true;
  }
  const Call& call = op.call;
  if (call.root >= world_) throw ConfigError("root " + std::to_string(call.root) + " is outside a world of " + std::to_string(world_));
  if (reduces(call.collective) && !allowed(call.op, call.dtype))
    throw ConfigError(std::string(name_of(call.op)) + " is not defined on " + name_of(call.dtype));
  const Table* found = table_of(call);
  if (found == nullptr) return false;
  const Table& table = *found;
  const std::uint64_t bytes = block_bytes(call, world_);
  std::size_t i = 0;
  while (i + 1 < table.upto_bytes.size() && bytes > table.upto_bytes[i]) ++i;
  op.executor = table.executors[i];
  check_buffers(call, op.executor->program().header());
  return true;
}

// INPUT and OUTPUT are apart, or in place as the collective has it; anything between would destroy data.
void Group::check_buffers(const Call& call, const ProgramHeader& h) const {
  const std::size_t element = size_of(call.dtype);
  const auto too_large = [&](std::uint64_t count) { return count > most_elements_; };  // nothing below overflows then
  if (too_large(call.count) || (call.input_counts != nullptr && std::any_of(call.input_counts, call.input_counts + world_, too_large)) ||
      (call.output_counts != nullptr && std::any_of(call.output_counts, call.output_counts + world_, too_large)))
    throw ConfigError(std::string(name_of(call.collective)) + ": impossibly many elements");
  const std::uint64_t input_bytes = elements(h.input_blocks, call.count, call.input_counts) * element;
  const std::uint64_t output_bytes = elements(h.output_blocks, call.count, call.output_counts) * element;
  if ((input_bytes != 0 && call.input == nullptr) || (output_bytes != 0 && call.output == nullptr))
    throw ConfigError(std::string(name_of(call.collective)) + ": a buffer is missing");
  if (input_bytes == 0 || output_bytes == 0) return;
  if (call.input >= call.output + output_bytes || call.output >= call.input + input_bytes) return;
  const std::byte* input_wanted = call.output;
  switch (call.collective) {
    case Collective::all_gather: input_wanted += elements_before(rank_, call.count, call.output_counts) * element; break;
    case Collective::gather: input_wanted += elements_before(call.root, call.count, call.output_counts) * element; break;
    case Collective::reduce_scatter: input_wanted -= elements_before(rank_, call.count, call.input_counts) * element; break;
    case Collective::scatter: input_wanted -= elements_before(call.root, call.count, call.input_counts) * element; break;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::all_to_all:
    case Collective::barrier: break;
  }
  if (call.input != input_wanted)
    throw ConfigError(std::string(name_of(call.collective)) +
                      ": input and output overlap, but not as an in-place call does; pass separate buffers");
}

std::int64_t Group::deadline(double timeout_s) const {
  const double limit = 1e9;  // 30 years: more would overflow
  return monotonic_ns() + static_cast<std::int64_t>(std::min(timeout_s, limit) * 1e9);
}

void Group::settle(Op& op) const {
  if (op.executor == nullptr || remote_ || !SlotCall::fits(op.executor->program(), op.call, board_.slot_bytes())) return;
  op.slot_call = std::make_shared<SlotCall>(op.executor->program(), op.call, local_index_);
}

// Takes the token if nothing is under way.
bool Group::take_token() {
  if (!try_token()) return false;
  take_in();
  if (abort_asked_.load(std::memory_order_relaxed)) check_health();
  if (current_ == nullptr && collectives_.empty() && !broken_.load(std::memory_order_relaxed)) return true;
  release_token();
  return false;
}

Group::Begun Group::begin_collective(Op& op) {
  op.deadline_ns = 0;
  if (!take_token()) return Begun::busy;
  begin(op);
  if (slot_call_ == nullptr || phase_ != Phase::arriving) return Begun::under_way;
  for (std::uint32_t turn = 0; !arrive(); ++turn) {
    if (turn >= first_spins_) return Begun::under_way;
    cpu_relax();
  }
  if (current_ != nullptr) {
    fold_slots();
    finish_current();
  }
  release_token();
  return Begun::over;
}

Group::Begun Group::begin_messages(std::array<Op*, 2> ops) {
  if (!take_token()) return Begun::busy;
  messages_now_ = ops;
  for (Op* op : ops) {
    if (op == nullptr) continue;
    op->deadline_ns = 0;
    p2p_->post(*op);
  }
  const auto pending = [&] { return std::any_of(ops.begin(), ops.end(), [](const Op* op) { return op != nullptr && op->pending(); }); };
  for (std::uint32_t turn = 0; pending(); ++turn) {
    if (turn > first_spins_ / kTurnsPerLook) return Begun::under_way;
    if (!drive()) cpu_relax();
  }
  messages_now_ = {};
  release_token();
  return Begun::over;
}

void Group::end_messages() {
  for (Op* op : messages_now_)
    if (op != nullptr) drive_until(*op);
  messages_now_ = {};
  release_token();
}

void Group::end_now(Op& op) {
  if (op.kind != Op::Kind::collective) return end_messages();
  drive_until(op);
  release_token();
}

bool Group::run_now(Op& op) {
  const Begun begun = begin_now(op);
  if (begun == Begun::under_way) end_now(op);
  return begun != Begun::busy;
}

void Group::submit(std::shared_ptr<Op> op) {
  pending_.fetch_add(1, std::memory_order_seq_cst);
  const std::lock_guard lock(inbox_mutex_);
  if (left_.load(std::memory_order_relaxed)) {  // nobody will ever drive it
    op->fail(broken_.load() ? broken_failure() : abort_failure());
    pending_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  inbox_.push_back(std::move(op));
  inbox_size_.fetch_add(1, std::memory_order_release);
}

void Group::start(std::shared_ptr<Op> op) {
  op->deadline_ns = deadline(options_.timeout_s);
  submit(std::move(op));
  if (try_token()) {  // get it going at once: a small one may be over before anybody waits
    const std::int64_t until = monotonic_ns() + kStartTime_ns;
    while (drive() && monotonic_ns() < until) {
    }
    for (std::uint32_t turn = 0; turn < first_spins_ && only_published(); ++turn) {  // the peers may be as far in a moment
      if (drive(false)) break;
      cpu_relax();
    }
    release_token();
    return;
  }
  bells_->ring(my_local_);  // the driver may be asleep
  notify_progress();
}

void Group::notify_progress() {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!progress_) progress_ = Progress::shared();
  }
  progress_->notify(shared_from_this());
}

bool Group::test(Op& op) {
  if (op.pending() && try_token()) {
    if (!drive()) check_health();  // perhaps nobody else looks
    release_token();
  }
  return !op.pending();
}

bool Group::wait(Op& op, double timeout_s) {
  const std::int64_t until = timeout_s < 0 ? INT64_MAX : deadline(timeout_s);
  std::int64_t next_interrupt_ns = 0;
  while (op.pending()) {
    const std::int64_t left = until - monotonic_ns();
    if (left <= 0) return false;
    if (timeout_s < 0 && try_token()) {
      drive_until(op);
      release_token();
      continue;
    }
    if (timeout_s >= 0) notify_progress();
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = events_.load(std::memory_order_seq_cst);
    if (op.pending() && (timeout_s >= 0 || token_.load(std::memory_order_seq_cst) != 0))
      futex_wait(events_, seen, std::min(left, kLongestSleep_ns));
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    // Somebody else drives, who may not be the thread that signals concern.
    if (options_.interrupted == nullptr || !op.pending() || monotonic_ns() < next_interrupt_ns) continue;
    next_interrupt_ns = monotonic_ns() + kLongestSleep_ns;
    if (options_.interrupted()) return false;
  }
  return true;
}

void Group::wake_waiters() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_relaxed) == 0) return;
  events_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(events_);
}

void Group::release_token_quietly() {
  token_.exchange(0, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) wake_waiters();
}

void Group::release_token() {
  const bool leave = !has_work() || only_published();
  release_token_quietly();
  if (!leave) notify_progress();
}

// True if all that is left is a collective by the board that has been entered: no peer waits for more from us until the next
// one, and whoever wants its result here will wait for it.
bool Group::only_published() const {
  return pending_.load(std::memory_order_acquire) == 1 && slot_call_ != nullptr && phase_ == Phase::arriving && !p2p_->busy();
}

// Drives until `op` is over. Holds the token.
void Group::drive_until(Op& op) {
  waiter_.reset();
  for (std::uint32_t turn = 0; op.pending(); ++turn) {
    if (drive(turn % kTurnsPerLook == 0)) {
      waiter_.reset();
      continue;
    }
    const bool waits_on = waiter_.pause();
    if (waiter_.spun_out()) placement_.spread_out();
    if (waits_on) continue;
    if (op.deadline_ns == 0) op.deadline_ns = deadline(options_.timeout_s);
    check_health();
    if (op.pending() && options_.interrupted != nullptr && monotonic_ns() >= next_interrupt_ns_) {
      next_interrupt_ns_ = monotonic_ns() + kLongestSleep_ns;
      interrupting_.store(std::this_thread::get_id());
      const bool stop = options_.interrupted();
      interrupting_.store(std::thread::id());
      if (stop) break_down(interrupt_failure());
      if (abort_asked_.load()) check_health();
    }
    if (op.pending()) sleep(std::clamp(op.deadline_ns - monotonic_ns(), kShortestSleep_ns, kLongestSleep_ns));
  }
}

void Group::sleep(std::int64_t most_ns) {
  if (most_ns <= 0) return;
  const std::atomic<std::uint32_t>& bell = board_.rank(my_local_).bell;
  const std::uint32_t seen = bell.load(std::memory_order_seq_cst);
  if (remote_) {
    if (!prepare_sleep(Sleeping::on_socket)) poll_wires(most_ns);
    end_sleep();
  } else {
    if (!prepare_sleep(Sleeping::on_futex)) futex_wait(bell, seen, most_ns);
    board_.rank(my_local_).sleeping.store(0, std::memory_order_relaxed);
  }
}

// Says on the board that this rank sleeps, then looks once more; true if something moved: do not sleep then.
bool Group::prepare_sleep(Sleeping how) {
  board_.rank(my_local_).sleeping.store(static_cast<std::uint32_t>(how), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return drive();
}

void Group::end_sleep() {
  board_.rank(my_local_).sleeping.store(0, std::memory_order_relaxed);
  poll_wires(0);  // also without remote peers: rings that stay in the socket would end every sleep to come
}

// True if there were news. They are told once only: whoever sees them must look at the pipes again before it sleeps.
bool Group::poll_wires(std::int64_t most_ns) {
  const bool news = poller_.poll(std::chrono::nanoseconds(most_ns)) != 0;
  if (bell_readiness_.readable) {
    (hub_ ? hub_->bell(rank_) : bell_).drain();
    bell_readiness_.readable = false;
  }
  return news;
}

// For a driver that polls: where few connections are waited for, trying to read them costs no more than asking epoll,
// and when it succeeds the bytes are there. Every now and then epoll is asked all the same, for the others.
bool Group::look_at_wires() {
  constexpr std::size_t kMostConnections = 16;
  constexpr std::uint32_t kMostTries = 2, kLooks = 16;
  if (mesh_.connections.size() > kMostConnections || ++looks_ % kLooks == 0) return poll_wires(0);
  TcpConnection* tries[kMostTries] = {};
  std::uint32_t num_tries = 0;
  for (const auto& connection : mesh_.connections) {
    if (!connection->readiness().writable) return poll_wires(0);
    if (!connection->readiness().asked || (connection->index() == 0 && !p2p_->waiting())) continue;
    if (num_tries == kMostTries) return poll_wires(0);
    tries[num_tries++] = connection.get();
  }
  for (std::uint32_t i = 0; i < num_tries; ++i) tries[i]->try_again();
  return num_tries == 0 && poll_wires(0);
}

// Takes over what other threads submitted.
void Group::take_in() {
  if (inbox_size_.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(inbox_mutex_);
  bool failed = false;
  for (std::shared_ptr<Op>& op : inbox_) {
    if (broken_.load(std::memory_order_relaxed)) {
      op->fail(broken_failure());
      told_.store(true);
      pending_.fetch_sub(1, std::memory_order_relaxed);
      failed = true;
    } else if (op->kind == Op::Kind::collective) {
      collectives_.push_back(std::move(op));
    } else {
      p2p_->post(*op);
      messages_.push_back(std::move(op));
    }
  }
  inbox_.clear();
  inbox_size_.store(0, std::memory_order_relaxed);
  if (failed) wake_waiters();
}

// Moves everything on once. Holds the token.
bool Group::drive(bool all) {
  if (abort_asked_.load(std::memory_order_relaxed) && !broken_.load(std::memory_order_relaxed)) break_down(abort_failure());
  take_in();
  bool moved = drive_collective();
  if ((all && !moved) || p2p_->busy()) {
    moved |= p2p_->progress();
    if (!messages_.empty()) {
      const std::size_t over = std::erase_if(messages_, [](const std::shared_ptr<Op>& op) { return !op->pending(); });
      if (over != 0) {
        pending_.fetch_sub(static_cast<std::uint32_t>(over), std::memory_order_release);
        wake_waiters();
      }
    }
    if (p2p_->bad_news() && !broken_.load(std::memory_order_relaxed)) break_down(p2p_->bad_news());
  }
  if (!moved && remote_) moved = look_at_wires();
  return moved;
}

}  // namespace hccl_py
