// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/shm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "hccl_py/error.hpp"
#include "hccl_py/reduce.hpp"

namespace hccl_py {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLargestPage = 64 * 1024;  // rings begin on a page, whatever the machine's pages are
constexpr std::size_t kMostReservedBytes = std::size_t{64} << 20;
constexpr std::size_t kMostCallers = 64;         // strangers at the door, beside the ranks we wait for

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

struct RingControl {
  alignas(64) std::atomic<std::uint64_t> head;  // bytes ever written
  std::atomic<std::uint64_t> offered;           // of loans, bytes ever offered
  alignas(64) std::atomic<std::uint64_t> tail;  // bytes ever read
  std::atomic<std::uint64_t> taken;             // of loans, bytes ever taken
  std::atomic<std::uint32_t> pulls;             // 1: the reader can read the writer's private memory
};

[[noreturn]] void unavailable(const std::string& what) {
  throw TransportUnavailableError("shm: " + what, errno_text(errno));
}

// Waits until one of `fds` is ready or the deadline has passed; false then.
bool wait_ready(std::span<pollfd> fds, std::int64_t deadline_ns) {
  for (;;) {
    const std::int64_t left_ms = (deadline_ns - monotonic_ns()) / 1'000'000;
    if (left_ms <= 0) return false;
    const int n = poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(left_ms, 1'000'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) unavailable("poll failed");
  }
}

bool wait_readable(int fd, std::int64_t deadline_ns) {
  pollfd one{fd, POLLIN, 0};
  return wait_ready({&one, 1}, deadline_ns);
}

void send_fd(int socket, int fd, std::uint64_t nonce) {
  if (send_with_fd(socket, std::as_bytes(std::span(&nonce, 1)), fd, 0) != sizeof nonce) unavailable("cannot hand out the shared memory");
}

Fd receive_fd(int socket, std::uint64_t nonce) {
  std::uint64_t got = 0;
  Fd fd;
  if (receive_with_fd(socket, std::as_writable_bytes(std::span(&got, 1)), fd, 0) != sizeof got)
    unavailable("the first rank of this host did not hand out its memory");
  if (got != nonce || !fd) {
    errno = EPROTO;
    unavailable("the shared memory offered belongs to another job");
  }
  return fd;
}

}  // namespace

ShmDoor::ShmDoor()
    : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), name_("hccl_py-door-" + random_name()) {
  if (!fd_) unavailable("cannot make a socket");
  sockaddr_un address;
  const socklen_t length = abstract_address(name_, address);
  if (bind(fd(), reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd(), 1024) != 0)
    unavailable("cannot listen on a local socket");
}

// One direction between two ranks; this process uses it as writer or as reader, never both.
class ShmHost::Ring final : public SendPipe, public RecvPipe {
 public:
  Ring(RingControl& control, int fd, std::size_t offset, std::size_t capacity, const Bells& bells, std::uint32_t other,
       const BoardRank& peer, PeerSegments& segments, std::size_t piece)
      : control_(control), capacity_(capacity), bells_(bells), other_(other), peer_(peer), segments_(segments), piece_(piece) {
    // The data twice in a row: first reserve the addresses, then lay the same pages over both halves.
    void* room = mmap(nullptr, 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) unavailable("no address space for a ring");
    mapping_ = Mapping(room, 2 * capacity);
    data_ = mapping_.get();
    for (std::size_t half = 0; half < 2; ++half)
      if (mmap(data_ + half * capacity, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
               static_cast<off_t>(offset)) == MAP_FAILED)
        unavailable("cannot map a ring");
  }

  std::span<std::byte> reserve(std::size_t want) override {
    return {data_ + position_ % capacity_, std::min(want, room(want))};
  }
  void commit(std::size_t bytes) override {
    position_ += bytes;
    control_.head.store(position_, std::memory_order_release);
    bells_.ring(other_);
  }
  std::size_t write(std::span<const std::byte> head, std::span<const std::byte> body, bool) override {
    const std::size_t free = room(head.size() + body.size());
    const std::size_t from_head = std::min(free, head.size());
    const std::size_t from_body = std::min(free - from_head, body.size());
    if (from_head + from_body == 0) return 0;
    std::byte* out = data_ + position_ % capacity_;
    if (from_head != 0) std::memcpy(out, head.data(), from_head);
    if (from_body != 0) std::memcpy(out + from_head, body.data(), from_body);
    commit(from_head + from_body);
    return from_head + from_body;
  }
  bool flush() override {
    publish();
    return true;
  }

  bool lends(bool shared) const override { return shared || control_.pulls.load(std::memory_order_relaxed) == 1; }
  std::uint64_t open_loan(std::uint64_t bytes) override {
    const std::uint64_t base = loans_end_;
    loans_end_ += bytes;
    return base;
  }
  void offer(std::uint64_t position) override {
    offered_ = std::max(offered_, position);
    if (offered_ == loans_end_ || offered_ - published_ >= kOfferBytes) publish();
  }
  std::uint64_t taken() const override { return control_.taken.load(std::memory_order_acquire); }

  bool borrow(const Loan& loan) override {
    loan_ = loan;
    loan_at_ = staged_ = 0;
    if (loan.kind == Loan::Kind::landed) return true;
    shared_ = nullptr;
    if (loan.segment == 0) {
      if (staging_ == nullptr) staging_ = std::make_unique<Staging[]>(piece_ / sizeof(Staging));
      return true;
    }
    std::size_t size = 0;
    const std::byte* begin = segments_.find(other_, loan.segment, size);
    if (begin == nullptr || loan.at > size || loan.bytes > size - loan.at) return false;
    shared_ = begin + loan.at;
    return true;
  }
  std::uint64_t arrived() override {
    const std::uint64_t left = loan_.bytes - loan_at_;
    if (known_offered_ - taken_ < left) known_offered_ = control_.offered.load(std::memory_order_acquire);
    return std::min(left, known_offered_ - taken_);
  }

  std::span<const std::byte> peek(std::size_t want, std::size_t at_least) override {
    if (loan_at_ != loan_.bytes) return peek_loan(want, at_least);
    const std::size_t there = available(want);
    if (there < at_least) return {};
    return {data_ + position_ % capacity_, std::min(want, there)};
  }
  void consume(std::size_t bytes) override {
    if (loan_at_ != loan_.bytes) {
      loan_at_ += bytes;
      taken_ += bytes;
      control_.taken.store(taken_, std::memory_order_release);
      bells_.ring(other_);
      return;
    }
    position_ += bytes;
    control_.tail.store(position_, std::memory_order_release);
    bells_.ring(other_);
  }
  std::size_t read(std::span<std::byte> out) override {
    if (loan_at_ != loan_.bytes) return read_loan(out);
    const std::span<const std::byte> in = peek(out.size(), 1);
    if (in.empty()) return 0;
    std::memcpy(out.data(), in.data(), in.size());
    consume(in.size());
    return in.size();
  }
  // A lost peer shows on the board, not here, unless its memory was to be read.
  PipeState state() const override { return lost_ ? PipeState::failed : PipeState::open; }

 private:
  static constexpr std::uint64_t kOfferBytes = 256 * 1024;  // smaller gains are published when there is nothing else to do
  struct alignas(64) Staging {
    std::byte bytes[64];
  };

  void publish() {
    if (published_ == offered_) return;
    published_ = offered_;
    control_.offered.store(published_, std::memory_order_release);
    bells_.ring(other_);
  }
  // From the peer's private memory, at `at` of the loan; false if it is gone.
  bool pull(std::byte* out, std::uint64_t at, std::size_t bytes) {
    while (bytes != 0) {
      iovec here{out, bytes};
      iovec there{reinterpret_cast<void*>(loan_.at + at), bytes};
      const ssize_t n = process_vm_readv(static_cast<pid_t>(peer_.pid), &here, 1, &there, 1, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        lost_ = true;
        return false;
      }
      out += n;
      at += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::size_t>(n);
    }
    return true;
  }
  std::span<const std::byte> peek_loan(std::size_t want, std::size_t at_least) {
    const std::uint64_t there = arrived();
    if (there < at_least || lost_) return {};
    if (shared_ != nullptr) return {shared_ + loan_at_, std::min<std::size_t>(want, there)};
    if (staged_ < loan_at_ + at_least) {  // what is left of the last piece moves to the front
      auto* staging = reinterpret_cast<std::byte*>(staging_.get());
      const std::size_t rest = staged_ > loan_at_ ? staged_ - loan_at_ : 0;
      if (rest != 0) std::memmove(staging, staging + (loan_at_ - staged_from_), rest);
      const std::size_t n = std::min<std::size_t>(there - rest, piece_ - rest);
      if (!pull(staging + rest, loan_at_ + rest, n)) return {};
      staged_from_ = loan_at_;
      staged_ = loan_at_ + rest + n;
    }
    const auto* staging = reinterpret_cast<const std::byte*>(staging_.get());
    return {staging + (loan_at_ - staged_from_), std::min<std::size_t>(want, staged_ - loan_at_)};
  }
  std::size_t read_loan(std::span<std::byte> out) {
    const std::size_t n = std::min<std::size_t>(out.size(), arrived());
    if (n == 0 || lost_) return 0;
    if (shared_ != nullptr)
      std::memcpy(out.data(), shared_ + loan_at_, n);
    else if (!pull(out.data(), loan_at_, n))
      return 0;
    consume(n);
    return n;
  }

  // The other side's counter is read again only where what is known of it does not suffice.
  std::size_t room(std::size_t want) {
    if (capacity_ - (position_ - known_) < want) known_ = control_.tail.load(std::memory_order_acquire);
    return capacity_ - (position_ - known_);
  }
  std::size_t available(std::size_t want) {
    if (known_ - position_ < want) known_ = control_.head.load(std::memory_order_acquire);
    return known_ - position_;
  }

  RingControl& control_;
  std::size_t capacity_;
  const Bells& bells_;
  std::uint32_t other_;
  Mapping mapping_;
  std::byte* data_ = nullptr;
  std::uint64_t position_ = 0;  // our own counter
  std::uint64_t known_ = 0;     // the other side's, as last seen

  // loans: as writer
  std::uint64_t loans_end_ = 0;  // the position after the last one opened
  std::uint64_t offered_ = 0;
  std::uint64_t published_ = 0;
  // as reader
  const BoardRank& peer_;
  PeerSegments& segments_;
  std::size_t piece_;
  Loan loan_;
  std::uint64_t loan_at_ = 0;           // consumed
  std::uint64_t taken_ = 0;             // of all loans
  std::uint64_t known_offered_ = 0;
  const std::byte* shared_ = nullptr;   // the loan, if it can be read where it lies
  std::unique_ptr<Staging[]> staging_;  // else what has been read of it: [staged_from_, staged_)
  std::uint64_t staged_from_ = 0;
  std::uint64_t staged_ = 0;
  bool lost_ = false;
};

ShmHost::ShmHost(const ShmDoor& door, const BellSocket& bell, const std::vector<std::string>& doors,
                 const std::vector<std::string>& bells, const std::vector<std::int32_t>& ranks, std::uint32_t local,
                 std::uint64_t nonce, const ShmOptions& options, std::int64_t deadline_ns)
    : options_(options), num_ranks_(static_cast<std::uint32_t>(ranks.size())), local_(local) {
  if (options.ring_bytes < kPage || (options.ring_bytes & (options.ring_bytes - 1)) != 0)
    throw ConfigError("shm: ring_bytes must be a power of two of at least 4096, not " + std::to_string(options.ring_bytes));
  if (options.slot_bytes % 64 != 0) throw ConfigError("shm: slot_bytes must be a multiple of 64");
  const std::size_t num_rings = std::size_t{num_ranks_} * num_ranks_ * options.channels;
  controls_offset_ = round_up(Board::bytes(num_ranks_, options.slot_bytes), kPage);
  data_offset_ = round_up(controls_offset_ + num_rings * sizeof(RingControl), kLargestPage);
  mapped_bytes_ = data_offset_;
  const std::size_t bytes = data_offset_ + num_rings * options.ring_bytes;
  if (local == 0)
    make_memory(door, bytes, nonce, deadline_ns);
  else
    fetch_memory(doors[0], bytes, nonce, deadline_ns);
  BoardRank& me = board_.rank(local_);
  me.pid = static_cast<std::uint32_t>(getpid());
  me.rank = ranks[local_];
  bells_ = Bells(board_, &bell, bells);
  for (const std::string& name : bells) mailboxes_.push_back(name + "-segments");
  segments_ = std::make_unique<PeerSegments>(mailboxes_[local_], nonce);
  probe_ = random_u64();
  me.probe = probe_;
  me.probe_at = reinterpret_cast<std::uintptr_t>(&probe_);
  rings_.resize(num_rings);
}

ShmHost::~ShmHost() = default;

void ShmHost::make_memory(const ShmDoor& door, std::size_t bytes, std::uint64_t nonce, std::int64_t deadline_ns) {
  fd_ = Fd(memfd_create("hccl_py", MFD_CLOEXEC));
  if (!fd_) unavailable("memfd_create failed");
  if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) unavailable("cannot size the shared memory");
  // Pages that cannot be had are an error here, not a SIGBUS when they are touched. The many rings of a large host are
  // left to be had when they are used: most never are.
  const std::size_t reserved = bytes - data_offset_ <= kMostReservedBytes ? bytes : data_offset_;
  if (fallocate(fd_.get(), 0, 0, static_cast<off_t>(reserved)) != 0 && errno != EOPNOTSUPP) unavailable("not enough memory to share");
  map_board();
  BoardHeader& header = board_.header();
  header.nonce = nonce;
  header.num_ranks = num_ranks_;
  header.slot_bytes = options_.slot_bytes;
  header.magic.store(kBoardMagic, std::memory_order_release);
  hold_lock();
  // Each other rank connects, shows the nonce, gets the descriptor and says one byte once it has mapped it. Any process
  // of this machine can find the door and connect: who does not show the nonce gets nothing and delays nobody.
  std::vector<Fd> callers, members;
  while (members.size() + 1 < num_ranks_) {
    std::vector<pollfd> fds{{door.fd(), POLLIN, 0}};
    for (const Fd& caller : callers) fds.push_back({caller.get(), POLLIN, 0});
    if (!wait_ready(fds, deadline_ns))
      throw CollectiveTimeoutError("shm: " + std::to_string(num_ranks_ - 1 - members.size()) + " of " + std::to_string(num_ranks_) +
                                   " ranks of this host did not fetch the shared memory in time");
    for (std::size_t i = callers.size(); i-- > 0;) {
      if (fds[i + 1].revents == 0) continue;
      Fd caller = std::move(callers[i]);
      callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
      std::uint64_t shown = 0;
      if (recv(caller.get(), &shown, sizeof shown, MSG_DONTWAIT) != sizeof shown || shown != nonce) continue;
      send_fd(caller.get(), fd_.get(), nonce);
      members.push_back(std::move(caller));
    }
    if (fds[0].revents == 0) continue;
    Fd caller(accept4(door.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!caller && (errno == EMFILE || errno == ENFILE)) unavailable("cannot let a rank of this host in");
    if (caller) callers.push_back(std::move(caller));
    if (callers.size() > kMostCallers + num_ranks_) callers.erase(callers.begin());
  }
  bool all = true;
  for (const Fd& member : members) {
    char byte = 0;
    all = all && wait_readable(member.get(), deadline_ns) && recv(member.get(), &byte, 1, 0) == 1;
  }
  if (!all) throw TransportUnavailableError("shm: a rank of this host could not map the shared memory", "see that rank's own error");
}

void ShmHost::fetch_memory(const std::string& door, std::size_t bytes, std::uint64_t nonce, std::int64_t deadline_ns) {
  const Fd owned(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!owned) unavailable("cannot make a socket");
  const int fd = owned.get();
  sockaddr_un address;
  const socklen_t length = abstract_address(door, address);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
    unavailable("cannot reach the first rank of this host by a local socket");
  if (send(fd, &nonce, sizeof nonce, MSG_NOSIGNAL) != sizeof nonce) unavailable("the first rank of this host hung up");
  if (!wait_readable(fd, deadline_ns))
    throw CollectiveTimeoutError("shm: the first rank of this host did not hand out its memory in time");
  fd_ = receive_fd(fd, nonce);
  struct stat info{};
  if (fstat(fd_.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes)
    throw ConfigError("shm: the ranks of this host have different ring_bytes, slot_bytes or channels");
  map_board();
  const BoardHeader& header = board_.header();
  if (header.magic.load(std::memory_order_acquire) != kBoardMagic || header.nonce != nonce ||
      header.num_ranks != num_ranks_ || header.slot_bytes != options_.slot_bytes)
    throw ConfigError("shm: the ranks of this host have different ring_bytes, slot_bytes or channels");
  hold_lock();
  const char byte = 1;
  if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) unavailable("the first rank of this host hung up");
}

void ShmHost::map_board() {
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) unavailable("cannot map the shared memory");
  memory_ = Mapping(memory, mapped_bytes_);
  board_ = Board(memory_.get(), num_ranks_, options_.slot_bytes);
}

// A lock on byte `local` of the memfd, held by an open file description of our own: the kernel drops it the moment
// this process is gone, however it went, whatever its process namespace.
void ShmHost::hold_lock() {
  lock_fd_ = Fd(open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (!lock_fd_) return;  // no /proc: that we are lost is then noticed by timeout only
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local_;
  lock.l_len = 1;
  if (fcntl(lock_fd_.get(), F_OFD_SETLK, &lock) != 0)
    lock_fd_ = Fd();
  else
    board_.rank(local_).locked.store(1, std::memory_order_release);
}

bool ShmHost::alive(std::uint32_t local) const {
  if (local == local_ || !lock_fd_ || board_.rank(local).locked.load(std::memory_order_acquire) == 0) return true;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local;
  lock.l_len = 1;
  if (fcntl(lock_fd_.get(), F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

std::size_t ShmHost::ring_index(std::uint32_t from, std::uint32_t to, std::uint32_t channel) const {
  return (std::size_t{from} * num_ranks_ + to) * options_.channels + channel;
}

ShmHost::Ring& ShmHost::ring(std::size_t i, std::uint32_t other) {
  if (!rings_[i])
    rings_[i] = std::make_unique<Ring>(reinterpret_cast<RingControl*>(memory_.get() + controls_offset_)[i], fd_.get(),
                                       data_offset_ + i * options_.ring_bytes, options_.ring_bytes, bells_, other, board_.rank(other),
                                       *segments_, options_.piece_bytes);
  return *rings_[i];
}

SendPipe& ShmHost::send_pipe(std::uint32_t to, std::uint32_t channel) { return ring(ring_index(local_, to, channel), to); }

RecvPipe& ShmHost::recv_pipe(std::uint32_t from, std::uint32_t channel) {
  return ring(ring_index(from, local_, channel), from);
}

std::string ShmHost::probe_peers() {
  std::string why;
  for (std::uint32_t i = 0; i < num_ranks_; ++i) {
    if (i == local_) continue;
    const BoardRank& peer = board_.rank(i);
    std::uint64_t seen = 0;
    iovec here{&seen, sizeof seen};
    iovec there{reinterpret_cast<void*>(peer.probe_at), sizeof seen};
    const bool read = process_vm_readv(static_cast<pid_t>(peer.pid), &here, 1, &there, 1, 0) == sizeof seen;
    if (!read || seen != peer.probe) {
      why = "the private memory of rank " + std::to_string(peer.rank) + " cannot be read: " +
            (read ? "its process number means another process here" : errno_text(errno));
      continue;
    }
    for (std::uint32_t c = 0; c < options_.channels; ++c)
      reinterpret_cast<RingControl*>(memory_.get() + controls_offset_)[ring_index(i, local_, c)].pulls.store(1, std::memory_order_release);
  }
  return why;
}

bool ShmHost::announce(std::uint32_t number, int fd) const {
  for (std::uint32_t i = 0; i < num_ranks_; ++i)
    if (i != local_ && !segments_->announce(mailboxes_[i], local_, number, fd)) return false;
  return true;
}

}  // namespace hccl_py
