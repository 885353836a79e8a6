// SPDX-License-Identifier: Apache-2.0
// Copies with non-temporal stores where there are any: for what nobody reads before it has left the caches.
#pragma once

#include <cstddef>

namespace hccl_py {

// Others see the bytes only after stream_fence(). As many bytes from `next` on are fetched meanwhile: they will be read
// soon, and stores that leave the caches keep nobody from loading.
void stream_bytes(void* out, const void* in, std::size_t bytes, const void* next = nullptr);
void stream_fence();

}  // namespace hccl_py
