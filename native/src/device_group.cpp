// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/device_group.hpp"

#include <algorithm>
#include <string>

#include "hccl_py/error.hpp"

namespace hccl_py {
namespace {

// As in kernels/exchange.hpp.
constexpr std::uint64_t kBatchBytes = 4096, kFifoBytes = 16 * kBatchBytes, kSmallBlockBytes = 64 * 1024, kWarps = 32;
constexpr std::uint64_t kLanes = 32;
// Beyond two ranks, larger all-reduces are a reduce-scatter and an all-gather: fewer bytes, one launch more.
constexpr std::uint64_t kOneShotBytes = 512 * 1024;
constexpr std::uint64_t kLandThreads = 512, kLandAtOnce = 4;
constexpr unsigned kMessage = 15;  // in place of a collective's number

const char* const kCollectives[] = {"all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter",
                                    "all_to_all", "gather",  "scatter",   "barrier"};

std::uint64_t up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit; }

// What two ranks must agree on, in 64 bits: count 44, root 4, element type 4, wire type 4, operator 4, collective 4.
std::uint64_t fingerprint(unsigned collective, unsigned op, unsigned dtype, unsigned wire, unsigned root, std::uint64_t count) {
  return count << 20 | (root & 15) << 16 | dtype << 12 | wire << 8 | op << 4 | collective;
}

std::string words(std::uint64_t f) {
  static const char* const kOps[] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor"};
  static const char* const kTypes[] = {"float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8", "int16",
                                       "int32",   "int64",   "uint8",   "uint16",   "uint32",      "uint64",      "bool"};
  const unsigned collective = f & 15, op = f >> 4 & 15, wire = f >> 8 & 15, dtype = f >> 12 & 15, root = f >> 16 & 15;
  if (collective == kMessage) return std::to_string(f >> 20) + " bytes";
  std::string text = collective < 9 ? kCollectives[collective] : "?";
  text += " of " + std::to_string(f >> 20) + " " + (dtype < 15 ? kTypes[dtype] : "?");
  if (collective <= 1 || collective == 4) text += std::string(", ") + (op < 8 ? kOps[op] : "?");
  if (wire != dtype) text += std::string(", sent as ") + (wire < 15 ? kTypes[wire] : "?");
  if (collective == 1 || collective == 2 || collective == 6 || collective == 7) text += ", root " + std::to_string(root);
  return text;
}

}  // namespace

DeviceGroup::DeviceGroup(std::unique_ptr<Device> device, std::uint32_t rank, std::uint32_t size, const DeviceOptions& options)
    : device_(std::move(device)), rank_(rank), size_(size), options_(options) {
  if (size < 2 || size > HP_MAX_RANKS || rank >= size)
    throw ConfigError("a group on devices has 2 to 8 ranks, not " + std::to_string(size) + " (rank " + std::to_string(rank) + ")");
  // The scratch holds lines and slots for the most blocks; more ranks, fewer blocks each.
  blocks_limit_ = size <= 2 ? 128 : size <= 4 ? 64 : 32;
  HpExchange& x = layout_;
  x.rank = rank;
  x.max_blocks = blocks_limit_;
  x.max_fifos = blocks_limit_ * kWarps * 3 / 4;  // of a team of four, three take
  std::uint64_t end = 0;
  const auto place = [&](std::uint64_t num_bytes) {
    const std::uint64_t start = end;
    end += up(num_bytes, 4096) * 4096;
    return start;
  };
  const std::uint64_t words_bytes = std::uint64_t{HP_MAX_RANKS} * x.max_fifos * 4;
  x.off_head = place(2 * HP_MAX_RANKS * 16);
  x.off_credit = place(words_bytes);
  x.off_flag = place(words_bytes);
  x.off_dead = place(4);
  x.off_head_seq = place(HP_MAX_RANKS * 4);
  x.off_small_seq = place(x.max_blocks * 4);
  x.off_sent = place(words_bytes);
  x.off_got = place(words_bytes);
  x.off_read = place(words_bytes / HP_MAX_RANKS);
  x.off_push_calls = place(words_bytes / HP_MAX_RANKS);
  x.off_take_calls = place(words_bytes / HP_MAX_RANKS);
  x.off_small = place(2ull * (size - 1) * x.max_blocks * kSmallBlockBytes);
  x.off_ring = place(std::uint64_t{size - 1} * x.max_fifos * kFifoBytes);
  const std::uint64_t slots_bytes = std::uint64_t{HP_MAX_RANKS} * HP_LAND_SLOTS * 4;
  x.land_bytes = (16ull << 20) / (size <= 2 ? 1 : size <= 4 ? 2 : 4);
  x.off_land_flag = place(slots_bytes);
  x.off_land_credit = place(slots_bytes);
  x.off_land_sent = place(slots_bytes);
  x.off_land_passed = place(slots_bytes);
  x.off_land_got = place(slots_bytes);
  x.off_land_done = place(slots_bytes);
  x.off_land = place(std::uint64_t{size - 1} * HP_LAND_SLOTS * x.land_bytes);
  x.off_pack = place(std::uint64_t{size - 1} * HP_LAND_SLOTS * x.land_bytes);
  scratch_bytes_ = end;
  x.scratch[rank] = device_->allocate(scratch_bytes_);
  report_ = static_cast<HpReport*>(device_->allocate_host(sizeof(HpReport), x.report));
  event_ = device_->make_event();
}

DeviceGroup::~DeviceGroup() { close(); }

std::string DeviceGroup::handle() { return device_->share(layout_.scratch[rank_]); }

void DeviceGroup::map(std::uint32_t peer, const std::string& handle) {
  if (peer >= size_ || peer == rank_) throw ConfigError("rank " + std::to_string(peer) + " is no peer");
  layout_.scratch[peer] = device_->map(handle);
  handles_[peer] = handle;
}

std::uint32_t DeviceGroup::key(DType dtype, DType wire, ReduceOp op) {
  return static_cast<std::uint32_t>(dtype) | static_cast<std::uint32_t>(wire) << 4 | static_cast<std::uint32_t>(op) << 8;
}

void DeviceGroup::add_kernels(std::uint32_t key, const std::string& image) {
  kernels_[key] = {device_->load(image, "hp_small"), device_->load(image, "hp_large"), device_->load(image, "hp_gate"),
                   device_->load(image, "hp_land"), device_->load(image, "hp_pack")};
}

const DeviceGroup::Kernels* DeviceGroup::find(std::uint32_t key) const {
  const auto found = kernels_.find(key);
  return found == kernels_.end() ? nullptr : &found->second;
}

bool DeviceGroup::failed() const { return closed_ || lost_ >= 0 || !why_.empty() || __atomic_load_n(&report_->code, __ATOMIC_ACQUIRE); }

void DeviceGroup::check() {
  if (closed_) throw BrokenGroupError("this group on devices was closed");
  const unsigned code = __atomic_load_n(&report_->code, __ATOMIC_ACQUIRE);
  const std::string who = "rank " + std::to_string(rank_) + ": ";
  const int peer = static_cast<int>(report_->peer);
  if (lost_ >= 0) throw PeerLostError(who + why_, lost_);
  if (code == HP_TIMEOUT) {
    const double waited_s = static_cast<double>(report_->waited_ns) * 1e-9;
    throw CollectiveTimeoutError(who + "a collective on the device waited " + std::to_string(waited_s) + " s for rank " + std::to_string(peer) +
                                     ", which did not come; the group is broken, destroy it",
                                 static_cast<int>(rank_), peer, -1, waited_s);
  }
  if (code == HP_DESYNC) {
    const std::string ours = words(report_->ours), theirs = words(report_->theirs);
    throw DesyncError(who + "called " + ours + ", but rank " + std::to_string(peer) + " " + theirs +
                          "; the results are undefined and the group is broken, destroy it",
                      ours, theirs, peer);
  }
  if (!why_.empty()) throw BrokenGroupError(who + why_);
  if (code) throw BrokenGroupError(who + "a kernel of this group was stopped");
}

void DeviceGroup::abort(int lost, const std::string& why) {
  if (closed_ || lost_ >= 0) return;
  lost_ = lost;
  why_ = why;
  __atomic_store_n(&report_->abort, 1u, __ATOMIC_RELEASE);
}

void DeviceGroup::close() noexcept {
  if (closed_) return;
  closed_ = true;
  // A kernel may still be under way here or at a peer; the scratch is left to the end of the process then.
  for (std::uint32_t peer = 0; peer < size_; ++peer)
    if (!handles_[peer].empty()) device_->unmap(layout_.scratch[peer], handles_[peer]);
  device_->free(layout_.scratch[rank_]);
  device_->free_host(report_);
  device_->free_event(event_);
  if (has_carriers_)
    for (const Device::Stream carrier : carriers_) device_->free_stream(carrier);
}

HpExchange DeviceGroup::blank(const DeviceCall& c) const {
  HpExchange x = layout_;
  x.timeout_ns = static_cast<std::uint64_t>(options_.timeout_s * 1e9);
  x.peers = ((1u << size_) - 1) & ~(1u << rank_);
  const std::uint64_t say = fingerprint(static_cast<unsigned>(c.collective), static_cast<unsigned>(c.op), static_cast<unsigned>(c.dtype),
                                        static_cast<unsigned>(c.wire), c.root, c.count);
  for (std::uint32_t p = 0; p < size_; ++p) x.say[p] = x.expect[p] = say;
  return x;
}

// Calls of a group are one sequence, also where they come on different streams.
void DeviceGroup::enter(Device::Stream stream) {
  if (__builtin_expect(closed_ || lost_ >= 0 || report_->code != 0 || !why_.empty(), 0)) check();
  if (launched_ && stream == last_stream_) return;
  const std::uint64_t capture = device_->capture_of(stream);
  // What was captured and what was not cannot wait for each other; a graph's place is where it is replayed.
  if (launched_ && capture == device_->capture_of(last_stream_) && !device_->order(event_, last_stream_, stream))
    throw InternalError("ordering two streams failed: " + device_->last_error());
  last_stream_ = stream;
  launched_ = true;
}

void DeviceGroup::launch_exchange(const Kernels& kernels, HpExchange& x, std::uint64_t largest_bytes, bool may_be_small, bool full,
                                  Device::Stream stream) {
  const std::uint64_t budget = std::max<std::uint64_t>(1, std::min(blocks_limit_, options_.max_blocks));
  std::uint64_t blocks = 1, threads = 0;
  Device::Kernel kernel = 0;
  const std::uint64_t vectors = std::max<std::uint64_t>(1, up(largest_bytes, 16));
  if (may_be_small && largest_bytes <= std::min(options_.small_bytes, budget * kSmallBlockBytes / 2)) {
    threads = options_.small_threads ? options_.small_threads : std::clamp<std::uint64_t>(up(vectors, kLanes) * kLanes, 64, 512);
    blocks = std::min(up(vectors, threads), budget);
    x.rounds = static_cast<unsigned>(up(vectors, blocks * threads));
    if (x.rounds * threads * 32 > kSmallBlockBytes) {  // few blocks: more rounds than a block's lines have room for
      threads = 512;
      blocks = std::min(up(vectors, threads), budget);
      x.rounds = static_cast<unsigned>(up(vectors, blocks * threads));
    }
    kernel = kernels.small;
  } else {
    const std::uint64_t tiles = std::max<std::uint64_t>(1, up(largest_bytes, kBatchBytes));
    const std::uint64_t limit = std::max<std::uint64_t>(2, options_.large_blocks ? std::min<std::uint64_t>(options_.large_blocks, budget) : budget);
    // With some 48 blocks, two that take for one that pushes are as fast as half and half are with 64.
    // From 512 MiB on, they are a little faster with many, too; and half the warps are from 4 MiB down.
    const bool many = limit >= 60, huge = many && tiles >= 128 * 1024;
    const std::uint64_t takers = options_.takers ? options_.takers : huge || (limit >= 40 && !many) ? 2 : 1;
    x.takers = static_cast<unsigned>(std::min(takers, limit - 1));
    const std::uint64_t teams_limit = limit / (x.takers + 1);
    threads = options_.large_threads ? options_.large_threads : many && !full && tiles <= 1024 ? 512 : 1024;
    if (!full && !options_.large_threads)
      while (threads > 128 && tiles * kLanes * 2 <= teams_limit * x.takers * threads) threads /= 2;  // rather blocks than warps
    const std::uint64_t team_fifos = x.takers * threads / kLanes;
    const std::uint64_t teams = full ? teams_limit : std::min(up(tiles, team_fifos), teams_limit);
    blocks = teams * (x.takers + 1);
    const std::uint64_t each = tiles / (teams * team_fifos);  // batches for each FIFO
    x.batches = options_.batches ? options_.batches : full ? 2 : huge ? 4 : each >= 16 ? 2 : 1;
    x.slots = options_.slots ? options_.slots : 16 / x.batches;
    x.bulk = options_.bulk;
    kernel = kernels.large;
  }
  launch(kernel, blocks, threads, x, stream);
}

void DeviceGroup::launch(Device::Kernel kernel, std::uint64_t blocks, std::uint64_t threads, HpExchange& x, Device::Stream stream) {
  if (!device_->launch(kernel, static_cast<std::uint32_t>(blocks), static_cast<std::uint32_t>(threads), x, stream))
    throw InternalError("a kernel could not be launched: " + device_->last_error());
  ++launches_;
}

void DeviceGroup::order(Device::Stream before, Device::Stream after) {
  if (!device_->order(event_, before, after)) throw InternalError("ordering two streams failed: " + device_->last_error());
}

bool DeviceGroup::carries(std::uint64_t largest_bytes, bool aside) const {
  return largest_bytes >= (aside ? options_.carry_aside_bytes : options_.carry_bytes);
}

// Pieces go to landing slots in turn. What is queued is in an order in which it could also run one after the other, on
// all ranks together: streams may share a queue of the hardware.
void DeviceGroup::carry(const Kernels& kernels, const HpExchange& whole, std::uint64_t largest_bytes, std::uint64_t item,
                        std::uint64_t wire, bool aside, Device::Stream stream) {
  if (!has_carriers_) {
    for (Device::Stream& carrier : carriers_) carrier = device_->make_stream();
    has_carriers_ = true;
  }
  const std::uint64_t most = whole.land_bytes, least = 4ull << 20;
  std::uint64_t piece_bytes = options_.carry_piece_bytes ? options_.carry_piece_bytes : aside ? most : std::max(least, largest_bytes / 8);
  piece_bytes = std::min(up(piece_bytes, 65536) * 65536, most);
  const std::uint64_t piece = piece_bytes / wire, pieces = up(largest_bytes, piece_bytes);
  const std::uint64_t budget = std::max<std::uint64_t>(1, std::min(blocks_limit_, options_.max_blocks));
  const auto part = [&](std::uint64_t k) {
    HpExchange x = whole;
    x.peers = whole.peers;
    x.slot = static_cast<unsigned>((carried_ + k) % HP_LAND_SLOTS);
    const auto cut = [&](std::uint64_t n) { return n > k * piece ? std::min(piece, n - k * piece) : 0; };
    for (std::uint32_t p = 0; p < size_; ++p) {
      x.send[p] += k * piece * item, x.send_n[p] = cut(whole.send_n[p]);
      x.recv[p] += k * piece * item, x.recv_n[p] = cut(whole.recv_n[p]);
    }
    x.own_from += k * piece * item, x.own_to += k * piece * item, x.own_n = cut(whole.own_n);
    x.told = x.credit = x.land_to = x.land_from = x.heads = 0;
    return x;
  };
  const auto masks = [&](const std::array<unsigned long long, HP_MAX_RANKS>& n) {
    unsigned mask = 0;
    for (std::uint32_t p = 0; p < size_; ++p) mask |= p != rank_ && n[p] ? 1u << p : 0;
    return mask;
  };
  const auto to_of = [&](const HpExchange& x) { return masks(std::to_array(x.send_n)); };
  const auto from_of = [&](const HpExchange& x) { return masks(std::to_array(x.recv_n)); };
  const auto blocks_for = [&](std::uint64_t n) {
    return std::clamp<std::uint64_t>(up(up(n * wire, 16), kLandThreads * kLandAtOnce), 1, budget);
  };
  struct Told {
    unsigned slot = 0, mask = 0;
  };
  std::array<Told, 2> told{};
  for (std::uint64_t k = 0; k < std::min<std::uint64_t>(pieces, 2); ++k) order(stream, carriers_[(carried_ + k) % 2]);
  for (std::uint64_t k = 0; k < pieces + 2; ++k) {
    const Device::Stream carrier = carriers_[(carried_ + k) % 2];
    Told& before = told[(carried_ + k) % 2];
    HpExchange x = part(k);
    x.told_slot = before.slot, x.told = before.mask;
    if (k < pieces) {
      x.credit = to_of(x);
      launch(kernels.gate, 1, kLanes, x, carrier);
      x.land_to = x.credit;
      if (wire != item && x.land_to) launch(kernels.pack, blocks_for(*std::max_element(x.send_n, x.send_n + size_)), kLandThreads, x, carrier);
      for (std::uint32_t d = 1; d < size_; ++d) {
        const std::uint32_t p = (rank_ + d) % size_;
        if (!x.send_n[p]) continue;
        const auto place = [&](std::uint64_t offset) {
          return offset + (std::uint64_t{(rank_ + size_ - p - 1) % size_} * HP_LAND_SLOTS + x.slot) * x.land_bytes;
        };
        const std::uint64_t from = wire != item ? x.scratch[rank_] + place(x.off_pack) : x.send[p];
        if (!device_->copy(x.scratch[p] + place(x.off_land), from, x.send_n[p] * wire, carrier))
          throw InternalError("a copy to a peer failed: " + device_->last_error());
      }
      before = {x.slot, x.credit};
    } else if (x.told) {
      launch(kernels.gate, 1, kLanes, x, carrier);
      before = {};
    }
    if (k < 2 || k - 2 >= pieces) continue;
    HpExchange y = part(k - 2);
    y.land_to = to_of(y), y.land_from = from_of(y), y.heads = k == 2;
    launch(kernels.gate, 1, kLanes, y, stream);
    std::uint64_t n = y.own_n;
    for (std::uint32_t r = 0; r < size_; ++r) n = std::max<std::uint64_t>(n, y.recv_n[r]);
    launch(kernels.land, blocks_for(n), kLandThreads, y, stream);
  }
  for (std::uint64_t k = 0; k < std::min<std::uint64_t>(pieces, 2); ++k) order(carriers_[(carried_ + k) % 2], stream);
  carried_ += pieces;
}

std::uint64_t DeviceGroup::run(const DeviceCall& c, Device::Stream stream) {
  if (c.root >= size_) throw ConfigError("root " + std::to_string(c.root) + " is outside a group of " + std::to_string(size_));
  const bool fold = c.collective == Collective::all_reduce || c.collective == Collective::reduce || c.collective == Collective::reduce_scatter;
  const std::uint32_t kind = fold ? key(c.dtype, c.wire, c.op) : kCopyKey;
  const Kernels* kernels = find(kind);
  if (!kernels) return std::uint64_t{kind} + 1;
  const std::uint64_t bytes = c.count * size_of(c.dtype), wire_bytes = fold ? c.count * size_of(c.wire) : bytes;
  if (c.collective == Collective::all_reduce && size_ > 2 && wire_bytes > kOneShotBytes) return all_reduce_in_parts(c, stream);
  HpExchange x = blank(c);
  const std::uint64_t n = fold ? c.count : bytes;
  const auto send = [&](std::uint32_t p, std::uint64_t from) { x.send[p] = from, x.send_n[p] = n; };
  const auto receive = [&](std::uint32_t r, std::uint64_t to) { x.recv[r] = to, x.recv_n[r] = n; };
  const auto own = [&](std::uint64_t from, std::uint64_t to) { x.own_from = from, x.own_to = to, x.own_n = n; };
  const bool root = rank_ == c.root;
  for (std::uint32_t p = 0; p < size_; ++p) {
    const bool me = p == rank_;
    switch (c.collective) {
      case Collective::all_reduce:
        if (me) own(c.input, c.output); else send(p, c.input), receive(p, 0);
        break;
      case Collective::reduce:
        if (me && root) own(c.input, c.output);
        if (!me && root) receive(p, 0);
        if (!me && p == c.root) send(p, c.input);
        break;
      case Collective::broadcast:
        if (me && root) own(c.input, c.output);
        if (!me && root) send(p, c.input);
        if (!me && p == c.root) receive(p, c.output);
        break;
      case Collective::all_gather:
        if (me) own(c.input, c.output + p * bytes); else send(p, c.input), receive(p, c.output + p * bytes);
        break;
      case Collective::reduce_scatter:
        if (me) own(c.input + p * bytes, c.output); else send(p, c.input + p * bytes), receive(p, 0);
        break;
      case Collective::all_to_all:
        if (me) own(c.input + p * bytes, c.output + p * bytes); else send(p, c.input + p * bytes), receive(p, c.output + p * bytes);
        break;
      case Collective::gather:
        if (me && root) own(c.input, c.output + p * bytes);
        if (!me && root) receive(p, c.output + p * bytes);
        if (!me && p == c.root) send(p, c.input);
        break;
      case Collective::scatter:
        if (me && root) own(c.input + p * bytes, c.output);
        if (!me && root) send(p, c.input + p * bytes);
        if (!me && p == c.root) receive(p, c.output);
        break;
      case Collective::barrier:
        break;
      default:
        throw ConfigError("this collective is not for devices");
    }
  }
  const auto end = [](std::uint64_t start, std::uint64_t n) { return start + n; };
  x.in_place = fold && c.input < end(c.output, bytes) && c.output < end(c.input, bytes);
  enter(stream);
  if (carries(wire_bytes, c.aside))
    carry(*kernels, x, wire_bytes, fold ? size_of(c.dtype) : 1, fold ? size_of(c.wire) : 1, c.aside, stream);
  else
    launch_exchange(*kernels, x, wire_bytes, true, false, stream);
  return 0;
}

// Reduce-scatter of blocks that are whole vectors, then all-gather of the blocks within the output.
std::uint64_t DeviceGroup::all_reduce_in_parts(const DeviceCall& c, Device::Stream stream) {
  const Kernels* folds = find(key(c.dtype, c.wire, c.op));
  const Kernels* copies = find(kCopyKey);
  if (!copies) return std::uint64_t{kCopyKey} + 1;
  const std::uint64_t item = size_of(c.dtype), block = up(up(c.count, size_), 64) * 64;
  const auto start = [&](std::uint32_t r) { return std::min(r * block, c.count); };
  const auto length = [&](std::uint32_t r) { return std::min(start(r) + block, c.count) - start(r); };
  HpExchange x = blank(c), y = blank(c);
  for (std::uint32_t p = 0; p < size_; ++p) {
    if (p == rank_) continue;
    x.send[p] = c.input + start(p) * item, x.send_n[p] = length(p);
    x.recv_n[p] = length(rank_);
    y.send[p] = c.output + start(rank_) * item, y.send_n[p] = length(rank_) * item;
    y.recv[p] = c.output + start(p) * item, y.recv_n[p] = length(p) * item;
  }
  x.own_from = c.input + start(rank_) * item, x.own_to = c.output + start(rank_) * item, x.own_n = length(rank_);
  enter(stream);
  if (carries(c.count * size_of(c.wire), c.aside)) {
    carry(*folds, x, block * size_of(c.wire), item, size_of(c.wire), c.aside, stream);
    carry(*copies, y, block * item, 1, 1, c.aside, stream);
  } else {
    launch_exchange(*folds, x, block * size_of(c.wire), false, false, stream);
    launch_exchange(*copies, y, block * item, false, false, stream);
  }
  return 0;
}

std::uint64_t DeviceGroup::run_parts(const DeviceParts& parts, Device::Stream stream) {
  const Kernels* kernels = find(kCopyKey);
  if (!kernels) return std::uint64_t{kCopyKey} + 1;
  if (parts.send.size() != size_ || parts.send_bytes.size() != size_ || parts.recv.size() != size_ || parts.recv_bytes.size() != size_)
    throw ConfigError("parts need one number for each rank");
  HpExchange x = blank({Collective::all_to_all, ReduceOp::sum, DType::uint8, DType::uint8, 0, 0, 0, 0});
  std::uint64_t largest = 0;
  if (parts.message) x.peers = 0;
  for (std::uint32_t p = 0; p < size_; ++p) {
    if (p == rank_) {
      if (parts.send_bytes[p] != parts.recv_bytes[p]) throw ConfigError("what a rank sends itself is not what it receives");
      x.own_from = parts.send[p], x.own_to = parts.recv[p], x.own_n = parts.send_bytes[p];
      continue;
    }
    x.send[p] = parts.send[p], x.send_n[p] = parts.send_bytes[p];
    x.recv[p] = parts.recv[p], x.recv_n[p] = parts.recv_bytes[p];
    x.say[p] = fingerprint(kMessage, 0, 0, 0, 0, parts.send_bytes[p]);
    x.expect[p] = fingerprint(kMessage, 0, 0, 0, 0, parts.recv_bytes[p]);
    largest = std::max({largest, parts.send_bytes[p], parts.recv_bytes[p]});
  }
  enter(stream);
  launch_exchange(*kernels, x, largest, false, true, stream);  // sizes differ between ranks: so the grid must not depend on them
  return 0;
}

}  // namespace hccl_py
