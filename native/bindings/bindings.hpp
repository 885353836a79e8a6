// SPDX-License-Identifier: Apache-2.0
// The parts of the module, one file each.
#pragma once

#include <nanobind/nanobind.h>

namespace hccl_py {

void bind_errors(nanobind::module_& m);
void bind_values(nanobind::module_& m);
void bind_group(nanobind::module_& m);
void bind_device(nanobind::module_& m);
void bind_codecs(nanobind::module_& m);

}  // namespace hccl_py
