// SPDX-License-Identifier: Apache-2.0
// hccl_py._native: the engine for Python. Does not import hccl_py (the stub generator loads it alone).
#include "bindings.hpp"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a script that ends without closing its groups leaks nothing that matters
  m.doc() = "The native engine of hccl_py.";
  hccl_py::bind_errors(m);
  hccl_py::bind_values(m);
  hccl_py::bind_group(m);
  hccl_py::bind_device(m);
  hccl_py::bind_codecs(m);
}
