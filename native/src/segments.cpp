// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/segments.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include "hccl_py/bells.hpp"
#include "hccl_py/error.hpp"

namespace hccl_py {
namespace {

constexpr std::size_t kPage = Segment::kPage;

using Gone = std::atomic<std::uint32_t>;

std::size_t whole_pages(std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

// True if all of it is mapped privately, writable, and backed by no file.
bool private_anonymous(const std::byte* memory, std::size_t bytes) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t end = at + bytes;
  char line[512];
  while (at < end && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long first = 0, last = 0, inode = 0;
    char rights[8] = {};
    if (std::sscanf(line, "%lx-%lx %7s %*x %*x:%*x %lu", &first, &last, rights, &inode) != 4) continue;
    if (last <= at) continue;
    if (first > at || inode != 0 || std::strcmp(rights, "rw-p") != 0 || std::strstr(line, "[stack") != nullptr) break;
    at = last;
  }
  std::fclose(maps);
  return at >= end;
}

// Bytes that can be had without anybody being killed for them; all there are, if the system does not say.
std::uint64_t available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return ~std::uint64_t{0};
  unsigned long long kib = ~std::uint64_t{0} >> 10;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr && std::sscanf(line, "MemAvailable: %llu kB", &kib) != 1) {
  }
  std::fclose(file);
  return std::uint64_t{kib} << 10;
}

struct Note {
  std::uint64_t nonce;
  std::uint32_t owner;
  std::uint32_t number;
};

}  // namespace

Segment::Segment(std::size_t bytes, std::byte* adopted) : bytes_(bytes), adopted_(adopted != nullptr) {
  const auto refuse = [&](const char* what) {
    throw ConfigError("shared memory of " + std::to_string(bytes) + " bytes: " + what + ": " + errno_text(errno));
  };
  fd_ = Fd(memfd_create("hccl_py-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_) refuse("memfd_create failed");
  if (ftruncate(fd_.get(), static_cast<off_t>(kPage + bytes)) != 0) refuse("it cannot be sized");
  // Pages that cannot be had are an error here, not a SIGBUS when they are touched. The kernel would go on until it has to
  // kill somebody: what is plainly too much is refused first.
  const bool enough = bytes <= available_bytes();
  errno = ENOMEM;
  if (!enough) refuse("there is not enough memory");
  if (fallocate(fd_.get(), 0, 0, static_cast<off_t>(kPage + bytes)) != 0 && errno != EOPNOTSUPP) refuse("there is not enough memory");
  fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* head = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (head == MAP_FAILED) refuse("it cannot be mapped");
  head_ = Mapping(head, kPage);
  if (adopted_) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t n = pwrite(fd_.get(), adopted + done, bytes - done, static_cast<off_t>(kPage + done));
      if (n <= 0) refuse("it cannot be filled");
      done += static_cast<std::size_t>(n);
    }
  }
  void* data = mmap(adopted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE | (adopted_ ? MAP_FIXED : 0), fd_.get(),
                    static_cast<off_t>(kPage));
  if (data == MAP_FAILED) refuse("it cannot be mapped");
  data_ = static_cast<std::byte*>(data);
}

std::shared_ptr<Segment> Segment::allocate(std::size_t bytes) {
  return std::shared_ptr<Segment>(new Segment(whole_pages(bytes), nullptr));
}

std::shared_ptr<Segment> Segment::adopt(std::byte* memory, std::size_t bytes) {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(memory) % kPage;
  std::byte* first = memory - before;
  const std::size_t all = whole_pages(before + bytes);
  if (bytes == 0 || !private_anonymous(first, all))
    throw ConfigError(
        "only ordinary memory of this process can be registered: not empty, not read-only, not a mapped file, not shared already; small "
        "arrays may lie on a page with one that is: make those with empty()");
  return std::shared_ptr<Segment>(new Segment(all, first));
}

Segment::~Segment() {
  if (data_ == nullptr) return;
  if (adopted_) {  // private pages with the same contents, at the same place
    void* fresh = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return;  // then it stays shared, which harms nobody
    std::memcpy(fresh, data_, bytes_);
    if (mremap(fresh, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED) return;
  } else {
    munmap(data_, bytes_);
  }
  reinterpret_cast<Gone*>(head_.get())->store(1, std::memory_order_release);
  // The memory goes back at once, not only when the last peer has let go of its mapping.
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(kPage), static_cast<off_t>(bytes_));
}

void OwnSegments::add(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.segment.expired(); });
  entries_.push_back({next_number_++, segment, segment->data(), segment->bytes(), false});
  count_.store(static_cast<std::uint32_t>(entries_.size()), std::memory_order_release);
}

PeerSegments::PeerSegments(const std::string& name, std::uint64_t nonce)
    : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), nonce_(nonce) {
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (!socket_ || bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw TransportUnavailableError("shm: no socket for shared segments", errno_text(errno));
}

bool PeerSegments::announce(const std::string& name, std::uint32_t owner, std::uint32_t number, int fd) const {
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  const Note note{nonce_, owner, number};
  return send_with_fd(socket_.get(), std::as_bytes(std::span(&note, 1)), fd, MSG_DONTWAIT, &address, length) == sizeof note;
}

// Maps what has been announced.
void PeerSegments::receive() {
  for (;;) {
    Note note{};
    Fd fd;
    const ssize_t n = receive_with_fd(socket_.get(), std::as_writable_bytes(std::span(&note, 1)), fd, MSG_DONTWAIT);
    if (n < 0) break;
    if (!fd) continue;
    struct stat info{};
    if (n != sizeof note || note.nonce != nonce_ || fstat(fd.get(), &info) != 0 || info.st_size <= static_cast<off_t>(kPage)) continue;
    const auto bytes = static_cast<std::size_t>(info.st_size);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (memory == MAP_FAILED) continue;
    entries_.push_back({note.owner, note.number, Mapping(memory, bytes), bytes - kPage});
  }
}

void PeerSegments::forget_gone() {
  std::erase_if(entries_, [](const Entry& entry) {
    return reinterpret_cast<const Gone*>(entry.mapping.get())->load(std::memory_order_acquire) != 0;
  });
}

std::byte* PeerSegments::find(std::uint32_t owner, std::uint32_t number, std::size_t& bytes) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const Entry& entry : entries_)
      if (entry.owner == owner && entry.number == number) {
        bytes = entry.bytes;
        return entry.mapping.get() + kPage;
      }
    if (attempt == 0) receive();
  }
  return nullptr;
}

}  // namespace hccl_py
