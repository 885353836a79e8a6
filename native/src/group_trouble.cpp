// SPDX-License-Identifier: Apache-2.0
// Group: what happens when a rank is late, lost, wrong or leaves.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "hccl_py/error.hpp"
#include "hccl_py/group.hpp"
#include "hccl_py/progress.hpp"

namespace hccl_py {
namespace {

using Sequence = std::atomic_ref<std::uint64_t>;

constexpr std::int64_t kLiveness_ns = 100'000'000;
constexpr std::int64_t kGoodbye_ns = 500'000'000;
constexpr std::int64_t kRumour_ns = 200'000'000;  // to hear from those who know better who is late

}  // namespace

// Looks for bad news. Called before each sleep, so at least ten times a second while anything waits.
void Group::check_health() {
  if (broken_.load(std::memory_order_relaxed)) return;
  if (abort_asked_.load(std::memory_order_acquire)) {
    break_down(abort_failure());
    return;
  }
  if (Failure news = from_board()) {
    break_down(std::move(news));
    return;
  }
  const std::int64_t now = monotonic_ns();
  // The board tells who has not come. By wires, whom we wait for may be waiting as well: ranks beside the culprit go first.
  const std::int64_t rumour_ns = remote_ ? kRumour_ns : 0;
  const bool certain = phase_ == Phase::following || phase_ == Phase::arriving;
  const Op* late = current_ != nullptr && current_->deadline_ns + (certain ? 0 : rumour_ns) <= now ? current_ : nullptr;
  for (const std::shared_ptr<Op>& op : messages_)
    if (op->pending() && op->deadline_ns + rumour_ns <= now) late = op.get();
  for (Op* op : messages_now_)
    if (op != nullptr && op->pending() && op->deadline_ns != 0 && op->deadline_ns + rumour_ns <= now) late = op;
  if (late != nullptr) {
    break_down(timeout_failure(*late));
    return;
  }
  if (now < next_liveness_ns_) return;
  next_liveness_ns_ = now + kLiveness_ns;
  const Failure maybe = lost_peer();
  if (!maybe) return;
  // It may have done its part and left since we looked at the pipes: only what is missing now will never come.
  drive();
  if (broken_.load(std::memory_order_relaxed)) return;
  if (Failure lost = lost_peer(); lost.culprit == maybe.culprit) break_down(std::move(lost));
}

// A rank of this host that is gone and for which the current work waits.
Failure Group::lost_peer() const {
  if (!shm_ && !hub_) return {};
  std::uint32_t gone = 0;
  for (std::uint32_t peer = 0; peer < world_; ++peer) gone += peer != rank_ && !local(peer) && p2p_->left(peer);
  for (std::uint32_t i = 0; i < board_.num_ranks(); ++i) {
    if (i == my_local_) continue;
    BoardRank& peer = board_.rank(i);
    const bool left = peer.closed.load(std::memory_order_acquire) != 0;
    if (!left && (!shm_ || shm_->alive(i))) continue;
    ++gone;
    const int rank = static_cast<int>(local_ranks_[i]);
    // It may have done its part before it left: then what it sent is still there.
    bool needed = false;
    if (current_ != nullptr)
      needed = phase_ == Phase::following  ? last_entered(peer) + 1 < mine_.sequence
               : phase_ == Phase::arriving ? Sequence(peer.line[mine_.sequence & 1].sequence).load(std::memory_order_acquire) != mine_.sequence
               : phase_ == Phase::running ? current_->executor->waiting_for(rank) == rank
               : phase_ == Phase::sharing ? shared_fold_->waiting_for(rank) == rank
                                          : false;
    // A receive from anybody needs it once nobody else is left.
    const auto needs = [&](const Op& op) { return op.pending() && (op.peer == rank || (op.peer < 0 && gone + 1 == world_)); };
    for (const std::shared_ptr<Op>& op : messages_) needed |= needs(*op);
    for (const Op* op : messages_now_) needed |= op != nullptr && needs(*op);
    if (!needed) continue;
    Failure why;
    why.kind = FailureKind::peer_lost;
    why.culprit = rank;
    why.sequence = current_ != nullptr ? mine_.sequence : 0;
    why.text = "rank " + std::to_string(rank) + " (pid " + std::to_string(peer.pid) + ") " + (left ? "has left the group" : "died");
    return why;
  }
  return {};
}

Failure Group::timeout_failure(const Op& op) const {
  Failure why;
  why.kind = FailureKind::timeout;
  why.waited_s = options_.timeout_s;
  if (op.kind != Op::Kind::collective) {
    why.culprit = op.peer;
    why.text = std::string(op.kind == Op::Kind::send ? "send to" : "receive from") + (op.peer < 0 ? " any rank" : " rank " + std::to_string(op.peer)) +
               " with tag " + std::to_string(op.tag) + " was not matched";
    return why;
  }
  why.sequence = op.sequence;
  const std::string what = std::string(name_of(op.call.collective)) + " #" + std::to_string(op.sequence);
  if (&op != current_ || (phase_ != Phase::following && phase_ != Phase::arriving)) {
    const bool sharing = phase_ == Phase::sharing;
    if (&op == current_) why.culprit = sharing ? shared_fold_->waiting_for() : op.executor->waiting_for();
    if (&op == current_ && !sharing) why.step = op.executor->waiting_step();
    why.text = "at rank " + std::to_string(rank_) + ", " + what + " did not finish" + (why.culprit >= 0 ? ": waiting for rank " + std::to_string(why.culprit) : "");
    return why;
  }
  for (std::uint32_t i = 0; i < board_.num_ranks(); ++i) {
    BoardRank& peer = board_.rank(i);
    const std::uint64_t last = last_entered(peer);
    if (i == my_local_ || last + (phase_ == Phase::following ? 1 : 0) >= mine_.sequence) continue;
    if (why.culprit < 0) why.culprit = static_cast<int>(local_ranks_[i]);
    why.text += (why.text.empty() ? "" : "; ") + ("rank " + std::to_string(local_ranks_[i])) + " (pid " + std::to_string(peer.pid) +
                ") has not entered " + what + ", its last was #" + std::to_string(last);
  }
  return why;
}

Failure Group::from_board() const {
  const BadNews& news = board_.header().bad_news;
  if (news.state.load(std::memory_order_acquire) != 2) return {};
  Failure why;
  why.kind = static_cast<FailureKind>(news.kind);
  why.culprit = news.culprit;
  why.sequence = news.sequence;
  why.text = news.text;
  return why;
}

// Tells the others: the ranks of this host by the board, those of other hosts by a frame.
void Group::spread(const Failure& why) {
  BadNews& news = board_.header().bad_news;
  std::uint32_t none = 0;
  if (news.state.compare_exchange_strong(none, 1)) {
    news.kind = static_cast<std::uint32_t>(why.kind);
    news.culprit = why.culprit;
    news.reporter = static_cast<std::int32_t>(rank_);
    news.sequence = why.sequence;
    std::snprintf(news.text, sizeof news.text, "%s", why.text.c_str());
    news.state.store(2, std::memory_order_release);
  }
  bells_->ring_all();
  for (std::uint32_t peer = 0; peer < world_; ++peer)
    if (peer != rank_ && !local(peer)) p2p_->send_abort(peer, why);
  push_out();
}

// Sends what the sockets take without waiting.
void Group::push_out() {
  for (int i = 0; i < 10 && p2p_->busy() && p2p_->progress(); ++i) {
  }
}

// Why a connection ended: the peer, or a rank of this host, may have told, and that may arrive after the end itself.
Failure Group::cause_of(Failure lost) {
  const auto peer = static_cast<std::uint32_t>(lost.culprit);
  const std::int64_t until = monotonic_ns() + kLiveness_ns;
  while (!p2p_->bad_news() && !p2p_->left(peer) && monotonic_ns() < until) {
    if (Failure news = from_board()) return news;
    if (!p2p_->progress()) poll_wires(kLiveness_ns / 100);
  }
  return p2p_->bad_news() ? p2p_->bad_news() : lost;
}

// The current collective fails. One that touched nothing leaves the group usable, if all ranks know of it by themselves.
void Group::fail_current(Failure why) {
  const bool harmless = why.kind == FailureKind::desync && ((phase_ == Phase::arriving && !remote_) || phase_ == Phase::checking);
  if (!harmless) {
    if (why.kind == FailureKind::peer_lost && remote_) why = cause_of(std::move(why));
    break_down(std::move(why));
    return;
  }
  Op& op = *current_;
  const std::shared_ptr<Op> keep = collectives_.empty() ? nullptr : collectives_.front();
  retire_current();
  settled_ = false;
  ++rounds_;  // what somebody published in this one counts no more
  op.fail(std::move(why));
  wake_waiters();
}

// The group is over: all its work fails for the same reason, here and at the others.
void Group::break_down(Failure why) {
  if (why.text.empty() && why.kind == FailureKind::desync)
    why.text = "rank " + std::to_string(rank_) + " found that rank " + std::to_string(why.culprit) + " runs something else as #" +
               std::to_string(why.sequence);
  // Who found out first knows best: a rank that ended because of it is no culprit.
  if (why.kind == FailureKind::peer_lost || why.kind == FailureKind::timeout)
    if (Failure news = from_board()) why = std::move(news);
  if (why.kind == FailureKind::timeout && why.waited_s == 0) why.waited_s = options_.timeout_s;  // another rank's, as long as ours
  {
    const std::lock_guard lock(broken_mutex_);
    if (broken_.load()) return;
    broken_why_ = why;
    broken_.store(true);
  }
  spread(why);
  if (current_ != nullptr || !collectives_.empty() || !messages_.empty() || messages_now_[0] != nullptr) told_.store(true);
  p2p_->fail_all(why);
  if (current_ != nullptr) {
    Op& op = *current_;
    const std::shared_ptr<Op> keep = collectives_.empty() ? nullptr : collectives_.front();
    retire_current();
    op.fail(why);
  }
  for (const std::shared_ptr<Op>& op : collectives_) op->fail(why);
  pending_.fetch_sub(static_cast<std::uint32_t>(collectives_.size() + messages_.size()), std::memory_order_release);
  collectives_.clear();
  messages_.clear();
  take_in();
  wake_waiters();
}

Failure Group::broken_failure() const {
  const std::lock_guard lock(broken_mutex_);
  return broken_why_;
}

void Group::throw_broken() const {
  const Failure why = broken_failure();
  const std::string text = "this group is broken since an earlier error: " + why.text +
                           (why.culprit >= 0 && why.text.find("rank") == std::string::npos ? " (rank " + std::to_string(why.culprit) + ")" : "");
  // It came between calls: the first call tells.
  if (why.kind == FailureKind::peer_lost && !told_.exchange(true)) throw PeerLostError(text, why.culprit);
  throw BrokenGroupError(text);
}

Failure Group::abort_failure() const {
  const std::lock_guard lock(broken_mutex_);
  Failure why;
  why.kind = FailureKind::aborted;
  why.culprit = static_cast<int>(rank_);
  why.text = abort_text_;
  return why;
}

Failure Group::interrupt_failure() const {
  Failure why;
  why.kind = FailureKind::aborted;
  why.culprit = static_cast<int>(rank_);
  why.text = "rank " + std::to_string(rank_) + " was interrupted";
  return why;
}

void Group::abort(const std::string& why) {
  {
    const std::lock_guard lock(broken_mutex_);
    if (!abort_asked_.load()) abort_text_ = "rank " + std::to_string(rank_) + " aborted the group: " + why;
    abort_asked_.store(true, std::memory_order_release);
  }
  if (!bells_) return;
  // Whoever drives looks at this within 100 ms; if nobody does, it is done here.
  bells_->ring(my_local_);
  if (!try_token()) return;
  check_health();
  release_token();
}

void Group::close() {
  closed_.store(true);
  if (!bells_ || left_.load() || Forks::count() != forks_) return;
  {
    const std::lock_guard lock(broken_mutex_);
    if (!abort_asked_.load()) abort_text_ = "rank " + std::to_string(rank_) + " closed the group while work was under way";
  }
  // The token is taken for good. A driver that is in the way is told to stop.
  while (!try_token()) {
    if (left_.load()) return;  // by another thread
    abort_asked_.store(true, std::memory_order_release);
    // A signal handler that runs within our own waiting: that ends now, and the destructor does the rest.
    if (interrupting_.load() == std::this_thread::get_id()) return;
    bells_->ring(my_local_);
    std::this_thread::yield();
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    left_.store(true);
  }
  if (has_work() && !broken_.load()) break_down(abort_failure());
  take_in();
  board_.rank(my_local_).closed.store(1, std::memory_order_release);
  bells_->ring_all();
  if (!broken_.load()) {
    for (std::uint32_t peer = 0; peer < world_; ++peer)
      if (peer != rank_ && !local(peer)) p2p_->send_goodbye(peer);
    // A peer that has yet to read what we sent gets some time, so that the goodbye finds room.
    const std::int64_t until = monotonic_ns() + kGoodbye_ns;
    while (p2p_->busy() && monotonic_ns() < until)
      if (!p2p_->progress()) poll_wires(1'000'000);
  }
  poll_wires(0);
  for (const auto& connection : mesh_.connections) {
    connection->sender().flush();
    connection->shutdown_send();
    std::byte trash[4096];  // unread bytes would turn our close into a reset that eats what we sent
    while (connection->receiver().read(trash) != 0) {
    }
    connection->close();
  }
  wake_waiters();
}

Group::~Group() {
  close();
  if (Forks::count() == forks_) return;
  // A forked child shares sockets and epoll with its parent and has no progress thread: it must undo nothing.
  new TcpMesh(std::move(mesh_));
  new std::shared_ptr<Progress>(std::move(progress_));
}

void Group::post_site(std::uint64_t sequence, const std::string& text) {
  BoardRank::Site& site = board_.rank(my_local_).site[sequence & 1];
  std::snprintf(site.text, sizeof site.text, "%s", text.c_str());
  site.sequence.store(sequence, std::memory_order_release);
}

std::string Group::peer_site(std::uint32_t peer, std::uint64_t sequence, double timeout_s) const {
  if (peer >= world_ || !local(peer)) return {};
  const BoardRank::Site& site = board_.rank(static_cast<std::uint32_t>(local_index_[peer])).site[sequence & 1];
  const std::int64_t until = deadline(timeout_s);
  while (site.sequence.load(std::memory_order_acquire) < sequence) {
    if (monotonic_ns() > until) return {};
    std::this_thread::yield();
  }
  return site.sequence.load(std::memory_order_acquire) == sequence ? std::string(site.text) : std::string();
}

}  // namespace hccl_py
