// SPDX-License-Identifier: Apache-2.0
// The parts of the module, one file each.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "hccl_py/reduce.hpp"

namespace hccl_py {

// The variant of this name, the best one for an empty name. Throws ConfigError if there is none.
Isa isa_named(const std::string& name);

void bind_errors(nanobind::module_& m);
void bind_values(nanobind::module_& m);
void bind_group(nanobind::module_& m);
void bind_device(nanobind::module_& m);
void bind_codecs(nanobind::module_& m);

}  // namespace hccl_py
