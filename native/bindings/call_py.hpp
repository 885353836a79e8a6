// SPDX-License-Identifier: Apache-2.0
// Calls from Python that run in the caller: on addresses, on arrays, and prepared ones.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "hccl_py/group.hpp"

namespace hccl_py {

// Throws ConfigError if one of the numbers is none of its kind.
Call make_call(int collective, int op, int dtype, std::uint32_t root, std::uintptr_t input, std::uintptr_t output, std::uint64_t count);
// Raises what went wrong with an op that is over; a Python error that is set goes first.
void throw_if_failed(const Op& op, std::uint32_t rank);

void bind_calls(nanobind::module_& m, nanobind::class_<Group>& group);

}  // namespace hccl_py
