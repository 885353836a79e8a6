// SPDX-License-Identifier: Apache-2.0
// A vector register: the compiler's vector types, as wide as the variant's registers, loaded and stored anywhere.
// Included once per variant, inside its namespace HCCL_PY_ISA. Nothing in these headers may call an inline function
// of another namespace: the linker keeps one copy of such a function, perhaps the one with AVX-512 in it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HCCL_PY_INLINE [[gnu::always_inline]] inline

namespace hccl_py::HCCL_PY_ISA {

// Asked once, here: all files must agree on the width whatever flags the compiler was given besides ours.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define HCCL_PY_WITH_AVX512 1
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__) && defined(__F16C__)
#define HCCL_PY_WITH_AVX2 1
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;

using F32 = Vector<float>;
using I32 = Vector<std::int32_t>;
using U32 = Vector<std::uint32_t>;
typedef std::uint32_t Quad __attribute__((vector_size(16)));

template <class V>
HCCL_PY_INLINE V load(const char* in) {
  V value;
  __builtin_memcpy(&value, in, sizeof value);
  return value;
}

template <class V>
HCCL_PY_INLINE void store(char* out, V value) {
  __builtin_memcpy(out, &value, sizeof value);
}

// Where the last vector of a message lies while it is folded.
struct alignas(kVectorBytes) Tail {
  char data[kVectorBytes];
};

// Copies 0..kVectorBytes-1 bytes in powers of two: a call of memcpy would cost more than the fold of a small message.
HCCL_PY_INLINE void copy_short(char* out, const char* in, std::size_t bytes) {
  std::size_t at = 0;
  const auto move = [&](auto part) {
    if ((bytes & sizeof part) == 0) return;
    __builtin_memcpy(&part, in + at, sizeof part);
    __builtin_memcpy(out + at, &part, sizeof part);
    at += sizeof part;
  };
  if constexpr (kVectorBytes > 16) move(Quad{});
  move(std::uint64_t{});
  move(std::uint32_t{});
  move(std::uint16_t{});
  move(std::uint8_t{});
}

// The rest of the vector becomes zero.
HCCL_PY_INLINE void load_tail(Tail& tail, const char* in, std::size_t bytes) {
#if defined(HCCL_PY_WITH_AVX512)
  store(tail.data, _mm512_maskz_loadu_epi8((std::uint64_t{1} << bytes) - 1, in));
#else
  store(tail.data, U32{});
  copy_short(tail.data, in, bytes);
#endif
}

HCCL_PY_INLINE void store_tail(char* out, const Tail& tail, std::size_t bytes) {
#if defined(HCCL_PY_WITH_AVX512)
  _mm512_mask_storeu_epi8(out, (std::uint64_t{1} << bytes) - 1, load<__m512i>(tail.data));
#else
  copy_short(out, tail.data, bytes);
#endif
}

}  // namespace hccl_py::HCCL_PY_ISA
