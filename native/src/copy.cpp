// SPDX-License-Identifier: Apache-2.0
// Copies. Above the size of the caches a plain store first reads the line it overwrites: non-temporal stores save
// that third of the traffic. Below, they would throw the data out of the cache of the rank that reads it next.
#include <cstdint>
#include <cstring>

#include "hccl_py/reduce.hpp"
#include "hccl_py/stream.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hccl_py {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kStreamFromBytes = std::size_t{16} << 20;
constexpr std::size_t kLineBytes = 64;

__attribute__((target("avx2"))) void stream_copy(char* out, const char* in, std::size_t bytes, const char* next) {
  const std::size_t head = (kLineBytes - reinterpret_cast<std::uintptr_t>(out) % kLineBytes) % kLineBytes;
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + 4 * kLineBytes <= bytes; at += 4 * kLineBytes) {
    if (next != nullptr)
      for (int k = 0; k < 4; ++k) _mm_prefetch(next + at + kLineBytes * static_cast<std::size_t>(k), _MM_HINT_T0);
    __m256i part[8];
    for (int k = 0; k < 8; ++k) part[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at + 32 * k));
    for (int k = 0; k < 8; ++k) _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at + 32 * k), part[k]);
  }
  std::memcpy(out + at, in + at, bytes - at);
}

bool streams() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2");
}

#endif

}  // namespace

void copy_bytes(void* out, const void* in, std::size_t bytes) {
  if (bytes == 0 || out == in) return;
#if defined(__x86_64__)
  if (bytes >= kStreamFromBytes && streams()) {
    stream_copy(static_cast<char*>(out), static_cast<const char*>(in), bytes, nullptr);
    stream_fence();
    return;
  }
#endif
  std::memcpy(out, in, bytes);
}

void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void stream_bytes(void* out, const void* in, std::size_t bytes, [[maybe_unused]] const void* next) {
#if defined(__x86_64__)
  if (bytes >= 4 * kLineBytes && streams()) {
    stream_copy(static_cast<char*>(out), static_cast<const char*>(in), bytes, static_cast<const char*>(next));
    return;
  }
#endif
  copy_bytes(out, in, bytes);
}

}  // namespace hccl_py
