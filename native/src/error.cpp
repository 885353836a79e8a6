// SPDX-License-Identifier: Apache-2.0
// The text of an errno.
#include "hccl_py/error.hpp"

#include <system_error>

namespace hccl_py {

std::string errno_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

}  // namespace hccl_py
