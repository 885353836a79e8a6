// SPDX-License-Identifier: Apache-2.0
// The hardware layer: all that a group on devices needs of one. Two implementations: CudaDevice (the CUDA driver,
// loaded at run time) and HostDevice (memory and threads of this process, for tests). docs/GPU.md says what a third
// must supply. Addresses, streams, kernels and events are numbers of the implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "../../kernels/exchange_types.hpp"

namespace hccl_py {

class Device {
 public:
  using Address = unsigned long long;
  using Stream = std::uint64_t;
  using Kernel = std::uint64_t;
  using Event = std::uint64_t;

  virtual ~Device() = default;
  // Memory of the device, zeroed. Its handle, sent to another rank, maps it there, in this or another process.
  virtual Address allocate(std::size_t num_bytes) = 0;
  virtual void free(Address address) noexcept = 0;
  virtual std::string share(Address address) = 0;
  virtual Address map(std::string_view handle) = 0;  // raises TransportUnavailableError if the peer is out of reach
  virtual void unmap(Address address, std::string_view handle) noexcept = 0;
  // Memory of the host that the device reads and writes, zeroed; `on_device` is its address there.
  virtual void* allocate_host(std::size_t num_bytes, Address& on_device) = 0;
  virtual void free_host(void* memory) noexcept = 0;
  // Kernels: `image` is what the compiler made.
  virtual Kernel load(std::string_view image, const char* name) = 0;
  virtual bool launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads, HpExchange& exchange, Stream stream) noexcept = 0;
  // Copies, on a stream, between memories of devices that reach each other; without their multiprocessors where possible.
  virtual bool copy(Address to, Address from, std::size_t num_bytes, Stream stream) noexcept = 0;
  virtual Stream make_stream() = 0;  // before others where the device has to choose
  virtual void free_stream(Stream stream) noexcept = 0;
  // Order between streams: `after` waits for what `before` holds now.
  virtual bool order(Event event, Stream before, Stream after) noexcept = 0;
  virtual Event make_event() = 0;
  virtual void free_event(Event event) noexcept = 0;
  virtual std::uint64_t capture_of(Stream stream) noexcept = 0;  // the graph being captured there, or 0
  virtual bool launch_waits() const { return false; }            // launch returns when the kernel has ended
  virtual std::string last_error() const = 0;                    // of what returned false
};

std::unique_ptr<Device> make_cuda_device(int ordinal);
std::unique_ptr<Device> make_host_device();

}  // namespace hccl_py
