// SPDX-License-Identifier: Apache-2.0
// The host as a device: ranks are threads of one process, a kernel is a set of threads, a stream is the caller. It runs
// the same exchange kernels, in the few variants that tests of the protocols need.
#define HP_HOST
#define HP_SIZE 2
#define HP_ELEM 1
#define HP_WIRE 1
#define HP_OP 0
#define HP_VARIANT sum_float_2
#include "host_variants.hpp"
#define HP_SIZE 2
#define HP_ELEM 1
#define HP_WIRE 3
#define HP_OP 0
#define HP_VARIANT sum_cast_2
#include "host_variants.hpp"
#define HP_SIZE 2
#define HP_ELEM 10
#define HP_WIRE 10
#define HP_OP -1
#define HP_VARIANT copy_2
#include "host_variants.hpp"
#define HP_SIZE 3
#define HP_ELEM 8
#define HP_WIRE 8
#define HP_OP 4
#define HP_VARIANT max_int_3
#include "host_variants.hpp"
#define HP_SIZE 3
#define HP_ELEM 1
#define HP_WIRE 1
#define HP_OP 1
#define HP_VARIANT avg_float_3
#include "host_variants.hpp"
#define HP_SIZE 3
#define HP_ELEM 10
#define HP_WIRE 10
#define HP_OP -1
#define HP_VARIANT copy_3
#include "host_variants.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "hccl_py/device.hpp"
#include "hccl_py/error.hpp"

namespace hccl_py {
namespace {

using Body = void (*)(const HpExchange&, const hp::Place&);

struct Variant {
  const char* image;  // size.elem.wire.op
  Body small, large, gate, land, pack;
};

#define HP_BODIES(name) hp::name::small, hp::name::large, hp::name::gate, hp::name::land, hp::name::pack_slots

const Variant kVariants[] = {
    {"2.1.1.0", HP_BODIES(sum_float_2)}, {"2.1.3.0", HP_BODIES(sum_cast_2)},  {"2.10.10.-1", HP_BODIES(copy_2)},
    {"3.8.8.4", HP_BODIES(max_int_3)},   {"3.1.1.1", HP_BODIES(avg_float_3)}, {"3.10.10.-1", HP_BODIES(copy_3)},
};
#undef HP_BODIES

class HostDevice final : public Device {
 public:
  Address allocate(std::size_t num_bytes) override { return reinterpret_cast<Address>(std::calloc(1, num_bytes)); }
  void free(Address address) noexcept override { std::free(reinterpret_cast<void*>(address)); }
  std::string share(Address address) override { return std::string(reinterpret_cast<const char*>(&address), sizeof address); }
  Address map(std::string_view handle) override {
    Address address = 0;
    if (handle.size() != sizeof address) throw InternalError("not a handle of the host's memory");
    std::memcpy(&address, handle.data(), sizeof address);
    return address;
  }
  void unmap(Address, std::string_view) noexcept override {}
  void* allocate_host(std::size_t num_bytes, Address& on_device) override {
    void* memory = std::calloc(1, num_bytes);
    on_device = reinterpret_cast<Address>(memory);
    return memory;
  }
  void free_host(void* memory) noexcept override { std::free(memory); }

  Kernel load(std::string_view image, const char* name) override {
    for (const Variant& v : kVariants)
      if (image == v.image) {
        const std::string_view wanted = name;
        const Body body = wanted == "hp_small" ? v.small : wanted == "hp_large" ? v.large : wanted == "hp_gate" ? v.gate : wanted == "hp_land" ? v.land : v.pack;
        return reinterpret_cast<Kernel>(body);
      }
    throw ConfigError("the host has no kernels " + std::string(image));
  }

  bool launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads, HpExchange& exchange, Stream) noexcept override {
    const Body body = reinterpret_cast<Body>(kernel);
    constexpr std::uint32_t kThreads = 4;  // whatever a GPU would have
    const std::uint32_t most = exchange.rounds ? 2 : exchange.takers + 1;
    const bool small = exchange.rounds != 0;
    const std::uint32_t vectors = exchange.rounds * blocks * threads;
    blocks = std::min(blocks, most);
    if (small) exchange.rounds = (vectors + blocks * kThreads - 1) / (blocks * kThreads);
    std::vector<std::unique_ptr<std::barrier<>>> meetings;
    constexpr std::uint32_t kSharedWords = 1024;
    std::vector<unsigned> shared(blocks * kSharedWords);
    std::vector<std::thread> team;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      meetings.push_back(std::make_unique<std::barrier<>>(kThreads));
      for (std::uint32_t t = 0; t < kThreads; ++t)
        team.emplace_back([&, b, t, meeting = meetings[b].get()] {
          body(exchange, hp::Place{b, blocks, t, kThreads, 0, &shared[b * kSharedWords], meeting});
        });
    }
    for (std::thread& thread : team) thread.join();
    return true;
  }

  bool copy(Address to, Address from, std::size_t num_bytes, Stream) noexcept override {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), num_bytes);
    return true;
  }
  Stream make_stream() override { return 0; }
  void free_stream(Stream) noexcept override {}
  bool order(Event, Stream, Stream) noexcept override { return true; }
  Event make_event() override { return 0; }
  void free_event(Event) noexcept override {}
  std::uint64_t capture_of(Stream) noexcept override { return 0; }
  bool launch_waits() const override { return true; }
  std::string last_error() const override { return {}; }
};

}  // namespace

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace hccl_py
