// SPDX-License-Identifier: Apache-2.0
// One rank of a group whose ranks reach each other's device memory: lays out the scratch, turns a collective into one
// or two launches of an exchange kernel, keeps them in order across streams, and turns reports into errors.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hccl_py/device.hpp"
#include "hccl_py/types.hpp"

namespace hccl_py {

struct DeviceOptions {
  double timeout_s = 600;
  std::uint32_t max_blocks = 64;            // SMs that a kernel may use, at most
  std::uint64_t small_bytes = 512 * 1024;   // largest message that goes by the latency kernel
  std::uint32_t small_threads = 0;          // 0: by size
  std::uint32_t large_threads = 0;
  std::uint32_t large_blocks = 0;
  std::uint32_t takers = 0;                 // blocks that take for each that pushes, 1 to 3
  std::uint32_t batches = 0, slots = 0;     // batches * slots is at most 16
  std::uint64_t carry_bytes = ~0ull;        // from which size on a copy engine carries what the caller waits for,
  std::uint64_t carry_aside_bytes = 1024 * 1024;  // and what goes on beside other work
  std::uint64_t carry_piece_bytes = 0;
  bool bulk = true;                         // push by bulk copies where the device has them
};

struct DeviceCall {
  Collective collective;
  ReduceOp op;
  DType dtype, wire;
  std::uint32_t root;
  std::uint64_t input, output, count;
  bool aside = false;  // other work is under way beside it
};

// Blocks of different sizes: bytes for and from each rank.
struct DeviceParts {
  std::vector<std::uint64_t> send, send_bytes, recv, recv_bytes;
  bool message = false;  // point to point: nobody waits for ranks without a part; sizes are not compared
};

class DeviceGroup {
 public:
  static constexpr std::uint32_t kCopyKey = ~0u;

  DeviceGroup(std::unique_ptr<Device> device, std::uint32_t rank, std::uint32_t size, const DeviceOptions& options);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  std::string handle();
  void map(std::uint32_t peer, const std::string& handle);
  void set_options(const DeviceOptions& options) { options_ = options; }
  const DeviceOptions& options() const { return options_; }

  static std::uint32_t key(DType dtype, DType wire, ReduceOp op);
  void add_kernels(std::uint32_t key, const std::string& image);

  // 0: launched; else the key of kernels that are missing, plus one. Raises what went wrong before.
  std::uint64_t run(const DeviceCall& call, Device::Stream stream);
  std::uint64_t run_parts(const DeviceParts& parts, Device::Stream stream);

  void order(Device::Stream before, Device::Stream after);
  // Raise what the device has reported, or what ended the group.
  void check();
  bool failed() const;
  // Everything under way ends; later calls raise PeerLostError (lost >= 0) or BrokenGroupError.
  void abort(int lost, const std::string& why);
  void close() noexcept;
  bool launch_waits() const { return device_->launch_waits(); }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return size_; }
  std::uint64_t launches() const { return launches_; }

 private:
  struct Kernels {
    Device::Kernel small = 0, large = 0, gate = 0, land = 0, pack = 0;
  };

  HpExchange blank(const DeviceCall& call) const;
  const Kernels* find(std::uint32_t key) const;
  void enter(Device::Stream stream);
  void launch_exchange(const Kernels& kernels, HpExchange& x, std::uint64_t largest_bytes, bool may_be_small, bool full,
                       Device::Stream stream);
  // As launch_exchange, by a copy engine. `item` and `wire`: bytes of an element in memory and as it travels.
  void carry(const Kernels& kernels, const HpExchange& x, std::uint64_t largest_bytes, std::uint64_t item, std::uint64_t wire,
             bool aside, Device::Stream stream);
  bool carries(std::uint64_t largest_bytes, bool aside) const;
  void launch(Device::Kernel kernel, std::uint64_t blocks, std::uint64_t threads, HpExchange& x, Device::Stream stream);
  std::uint64_t all_reduce_in_parts(const DeviceCall& call, Device::Stream stream);

  std::unique_ptr<Device> device_;
  const std::uint32_t rank_, size_;
  DeviceOptions options_;
  std::uint32_t blocks_limit_ = 0;
  HpExchange layout_{};
  std::uint64_t scratch_bytes_ = 0;
  std::array<std::string, HP_MAX_RANKS> handles_;
  HpReport* report_ = nullptr;
  std::unordered_map<std::uint32_t, Kernels> kernels_;
  Device::Event event_ = 0;
  Device::Stream last_stream_ = 0;
  std::uint64_t last_capture_ = 0;
  bool launched_ = false, closed_ = false;
  int lost_ = -1;
  std::string why_;
  std::uint64_t launches_ = 0;
  std::array<Device::Stream, 2> carriers_{};  // pieces take turns, so that one is copied while another is waited for
  bool has_carriers_ = false;
  std::uint64_t carried_ = 0;  // pieces so far: the same on all ranks
};

}  // namespace hccl_py
