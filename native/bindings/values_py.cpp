// SPDX-License-Identifier: Apache-2.0
// What the engine knows of this machine and of its types; the fold on its own, for tests.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "hccl_py/call.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/reduce.hpp"

namespace nb = nanobind;

namespace hccl_py {

Isa isa_named(const std::string& name) {
  if (name.empty()) return best_isa();
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
    if (name == name_of(isa)) return isa;
  throw ConfigError("no instruction set is called '" + name + "'; there are portable, avx2 and avx512");
}

namespace {

// Addresses instead of arrays: the element types go beyond NumPy's.
void fold(int op, int dtype, std::uintptr_t out, const std::vector<std::uintptr_t>& sources, std::size_t count,
          double scale, const std::string& isa) {
  const FoldFn kernel = fold_kernel(static_cast<ReduceOp>(op), static_cast<DType>(dtype), isa_named(isa));
  if (kernel == nullptr || sources.empty()) throw ConfigError("there is no such fold");
  std::vector<FoldSource> list;
  for (std::uintptr_t source : sources) list.push_back({reinterpret_cast<const void*>(source), true});
  const WithoutGil release;
  kernel(reinterpret_cast<void*>(out), list.data(), list.size(), count, scale);
}

// (address, elements, element type or -1, contiguous, read-only, in host memory); None if the object gives no memory.
nb::object buffer(nb::handle data) {
  Array array;
  if (!look_at(data, array)) return nb::none();
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data), array.count, array.dtype, array.contiguous, array.readonly,
                        array.on_host);
}

}  // namespace

void bind_values(nb::module_& m) {
  m.def("isa", [] { return std::string(name_of(best_isa())); }, "The instruction set whose kernels are used here.");
  m.def("slot_begin", &slot_begin, nb::arg("count"), nb::arg("slots"), nb::arg("k"),
        "First element of slot k, of a block of `count` elements in `slots` slots.");
  m.def("buffer", &buffer, nb::arg("data").none(),
        nb::sig("def buffer(data: object) -> tuple[int, int, int, bool, bool, bool] | None"),
        "(address, elements, element type or -1, contiguous, read-only, in host memory) of an array; None if it is none.");
  m.def("fold", &fold, nb::arg("op"), nb::arg("dtype"), nb::arg("out"), nb::arg("sources"), nb::arg("count"),
        nb::arg("scale") = 1.0, nb::arg("isa") = "",
        "Folds raw sources at the given addresses into `out`: what the engine does with arrived data.");
}

}  // namespace hccl_py
