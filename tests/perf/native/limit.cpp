// SPDX-License-Identifier: Apache-2.0
// The limit of an all-reduce of memory that both ranks can load and store.
#include <algorithm>

#include "pair.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hccl_py::perf {
namespace {

void add_portable(float* first, float* second, const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) first[i] = second[i] = a[i] + b[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_avx2(float* first, float* second, const float* a, const float* b, std::size_t count, bool stream) {
  std::size_t i = 0;
  if (stream) {
    for (; i + 8 <= count; i += 8) {
      const __m256 sum = _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i));
      _mm256_stream_ps(first + i, sum);
      _mm256_stream_ps(second + i, sum);
    }
    _mm_sfence();
  } else {
    for (; i + 8 <= count; i += 8) {
      const __m256 sum = _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i));
      _mm256_store_ps(first + i, sum);
      _mm256_store_ps(second + i, sum);
    }
  }
  add_portable(first + i, second + i, a + i, b + i, count - i);
}
#endif

void add(float* first, float* second, const float* a, const float* b, std::size_t count, [[maybe_unused]] bool stream) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return add_avx2(first, second, a, b, count, stream);
#endif
  add_portable(first, second, a, b, count);
}

}  // namespace

void limit_all_reduce(const SharedBuffers& buffers, Meeting& meeting, int rank, std::size_t bytes, bool in_place, bool stream) {
  const auto floats = [](std::byte* memory) { return reinterpret_cast<float*>(memory); };
  std::byte* const* output = in_place ? buffers.input : buffers.output;
  const std::size_t count = bytes / sizeof(float), half = std::min(count, (count / 2 + 15) / 16 * 16);
  const std::size_t begin = rank == 0 ? 0 : half, mine = rank == 0 ? half : count - half;
  meeting.wait(rank);
  add(floats(output[0]) + begin, floats(output[1]) + begin, floats(buffers.input[0]) + begin, floats(buffers.input[1]) + begin, mine, stream);
  meeting.wait(rank);
}

}  // namespace hccl_py::perf
