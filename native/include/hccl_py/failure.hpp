// SPDX-License-Identifier: Apache-2.0
// Turns the failure of an op into the error that the caller sees.
#pragma once

#include <string>

#include "hccl_py/op.hpp"

namespace hccl_py {

// "all_reduce #7 (sum, float32, 1000 elements)"
std::string describe(const Fingerprint& fingerprint);

// Throws the error that belongs to a failed op of rank `rank`.
[[noreturn]] void raise_failure(const Op& op, std::uint32_t rank);

}  // namespace hccl_py
