// SPDX-License-Identifier: Apache-2.0
// Copies with non-temporal stores where there are any: for what nobody reads before it has left the caches.
#pragma once

#include <cstddef>

namespace hccl_py {

// Others see the bytes only after stream_fence().
void stream_bytes(void* out, const void* in, std::size_t bytes);
void stream_fence();

}  // namespace hccl_py
