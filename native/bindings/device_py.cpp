// SPDX-License-Identifier: Apache-2.0
// DeviceGroup for Python. Launching keeps the GIL: it takes a few microseconds, and to get the GIL back can take more.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>

#include "bindings.hpp"
#include "gil.hpp"
#include "hccl_py/device_group.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/kernel_sources.hpp"

namespace nb = nanobind;

namespace hccl_py {
namespace {

std::unique_ptr<Device> make_device(const std::string& kind, int ordinal) {
  if (kind == "cuda") return make_cuda_device(ordinal);
  if (kind == "host") return make_host_device();
  throw ConfigError("there is no kind of device " + kind + "; there are cuda and host");
}

template <class Run>
std::uint64_t launch(DeviceGroup& group, const Run& run) {
  if (!group.launch_waits()) return run();
  const WithoutGil release;
  return run();
}

DeviceOptions options_of(double timeout_s, std::uint32_t max_blocks, std::uint64_t small_bytes, std::uint32_t small_threads,
                         std::uint32_t large_threads, std::uint32_t large_blocks, std::uint32_t takers, std::uint32_t batches, std::uint32_t slots,
                         std::uint64_t carry_bytes, std::uint64_t carry_aside_bytes, std::uint64_t carry_piece_bytes, bool bulk) {
  if (takers > 3) throw ConfigError("at most 3 blocks take for one that pushes, not " + std::to_string(takers));
  if (batches * slots > 16) throw ConfigError("a FIFO holds 16 batches, not " + std::to_string(batches * slots));
  return {timeout_s, max_blocks, small_bytes, small_threads, large_threads, large_blocks, takers, batches, slots, carry_bytes, carry_aside_bytes,
          carry_piece_bytes, bulk};
}

}  // namespace

void bind_device(nb::module_& m) {
  m.def("kernel_sources", [] {
    nb::dict sources;
    for (const KernelSource& source : kKernelSources) sources[source.name] = source.text;
    return sources;
  }, nb::sig("def kernel_sources() -> dict[str, str]"));
  nb::class_<DeviceGroup>(m, "DeviceGroup")
      .def("__init__", [](DeviceGroup* self, const std::string& kind, int ordinal, std::uint32_t rank, std::uint32_t size) {
        new (self) DeviceGroup(make_device(kind, ordinal), rank, size, DeviceOptions{});
      }, nb::arg("kind"), nb::arg("ordinal"), nb::arg("rank"), nb::arg("size"))
      .def("set_options", [](DeviceGroup& g, double timeout_s, std::uint32_t max_blocks, std::uint64_t small_bytes, std::uint32_t small_threads,
                             std::uint32_t large_threads, std::uint32_t large_blocks, std::uint32_t takers, std::uint32_t batches, std::uint32_t slots,
                             std::uint64_t carry_bytes, std::uint64_t carry_aside_bytes, std::uint64_t carry_piece_bytes, bool bulk) {
        g.set_options(options_of(timeout_s, max_blocks, small_bytes, small_threads, large_threads, large_blocks, takers, batches, slots, carry_bytes,
                                 carry_aside_bytes, carry_piece_bytes, bulk));
      }, nb::arg("timeout_s"), nb::arg("max_blocks"), nb::arg("small_bytes"), nb::arg("small_threads") = 0, nb::arg("large_threads") = 0,
           nb::arg("large_blocks") = 0, nb::arg("takers") = 0, nb::arg("batches") = 0, nb::arg("slots") = 0,
           nb::arg("carry_bytes") = ~0ull, nb::arg("carry_aside_bytes") = 1024 * 1024, nb::arg("carry_piece_bytes") = 0, nb::arg("bulk") = true)
      .def("handle", [](DeviceGroup& g) { const std::string h = g.handle(); return nb::bytes(h.data(), h.size()); })
      .def("map", [](DeviceGroup& g, std::uint32_t peer, const nb::bytes& handle) { g.map(peer, std::string(handle.c_str(), handle.size())); },
           nb::arg("peer"), nb::arg("handle"))
      .def("add_kernels", [](DeviceGroup& g, std::uint32_t key, const nb::bytes& image) {
        g.add_kernels(key, std::string(image.c_str(), image.size()));
      }, nb::arg("key"), nb::arg("image"))
      .def("run", [](DeviceGroup& g, int collective, int op, int dtype, int wire, std::uint32_t root, std::uint64_t input, std::uint64_t output,
                     std::uint64_t count, std::uint64_t stream, bool aside) {
        const DeviceCall call{static_cast<Collective>(collective), static_cast<ReduceOp>(op), static_cast<DType>(dtype), static_cast<DType>(wire),
                              root, input, output, count, aside};
        return launch(g, [&] { return g.run(call, stream); });
      }, nb::arg("collective"), nb::arg("op"), nb::arg("dtype"), nb::arg("wire"), nb::arg("root"), nb::arg("input"), nb::arg("output"),
           nb::arg("count"), nb::arg("stream"), nb::arg("aside") = false, "Launches a collective; 0, or 1 + the key of the kernels that it needs first.")
      .def("run_parts", [](DeviceGroup& g, std::vector<std::uint64_t> send, std::vector<std::uint64_t> send_bytes, std::vector<std::uint64_t> recv,
                           std::vector<std::uint64_t> recv_bytes, bool message, std::uint64_t stream) {
        const DeviceParts parts{std::move(send), std::move(send_bytes), std::move(recv), std::move(recv_bytes), message};
        return launch(g, [&] { return g.run_parts(parts, stream); });
      }, nb::arg("send"), nb::arg("send_bytes"), nb::arg("recv"), nb::arg("recv_bytes"), nb::arg("message"), nb::arg("stream"),
           "As run, with an address and a number of bytes for and from each rank.")
      .def("order", &DeviceGroup::order, nb::arg("before"), nb::arg("after"), "Stream `after` waits for what `before` holds now.")
      .def("check", &DeviceGroup::check)
      .def("failed", &DeviceGroup::failed)
      .def("abort", &DeviceGroup::abort, nb::arg("lost"), nb::arg("why"))
      .def("close", &DeviceGroup::close)
      .def_prop_ro("launches", &DeviceGroup::launches);
}

}  // namespace hccl_py
