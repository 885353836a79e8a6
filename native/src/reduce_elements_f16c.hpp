// SPDX-License-Identifier: Apache-2.0
// float16 and the float8 types by the CPU's conversions of float16, which work on neighbours.
// float8 goes by way of float16 in the upper byte of 16-bit lanes: exactly on the way in; on the way out the float16
// is rounded to odd, so that the second rounding, to nearest even, does what one rounding would have done.
#pragma once

#include "reduce_elements.hpp"

namespace hccl_py::HCCL_PY_ISA {

using U16 = Vector<std::uint16_t>;
using I16 = Vector<std::int16_t>;

// The types of half a register, and what converts them.
#if defined(HCCL_PY_WITH_AVX512)
using HalfBits = __m256i;
HCCL_PY_INLINE F32 widen(HalfBits half) { return _mm512_cvtph_ps(half); }
HCCL_PY_INLINE HalfBits lower(U16 value) { return _mm512_castsi512_si256(reinterpret_cast<__m512i>(value)); }
HCCL_PY_INLINE HalfBits upper(U16 value) { return _mm512_extracti64x4_epi64(reinterpret_cast<__m512i>(value), 1); }
template <int kRounding>
HCCL_PY_INLINE HalfBits narrow(F32 value) {
  return _mm512_cvtps_ph(value, kRounding | _MM_FROUND_NO_EXC);
}
HCCL_PY_INLINE U16 joined(HalfBits low, HalfBits high) {
  return reinterpret_cast<U16>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}
HCCL_PY_INLINE U16 limited(U16 value, short most) {
  return reinterpret_cast<U16>(_mm512_min_epu16(reinterpret_cast<__m512i>(value), _mm512_set1_epi16(most)));
}
HCCL_PY_INLINE U16 or_where_equal(U16 value, U16 what, short to, short bits) {
  const __m512i wide = reinterpret_cast<__m512i>(value);
  const __mmask32 equal = _mm512_cmpeq_epi16_mask(reinterpret_cast<__m512i>(what), _mm512_set1_epi16(to));
  return reinterpret_cast<U16>(_mm512_mask_blend_epi16(equal, wide, _mm512_or_si512(wide, _mm512_set1_epi16(bits))));
}
#else
using HalfBits = __m128i;
HCCL_PY_INLINE F32 widen(HalfBits half) { return _mm256_cvtph_ps(half); }
HCCL_PY_INLINE HalfBits lower(U16 value) { return _mm256_castsi256_si128(reinterpret_cast<__m256i>(value)); }
HCCL_PY_INLINE HalfBits upper(U16 value) { return _mm256_extracti128_si256(reinterpret_cast<__m256i>(value), 1); }
template <int kRounding>
HCCL_PY_INLINE HalfBits narrow(F32 value) {
  return _mm256_cvtps_ph(value, kRounding);
}
HCCL_PY_INLINE U16 joined(HalfBits low, HalfBits high) {
  return reinterpret_cast<U16>(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}
HCCL_PY_INLINE U16 limited(U16 value, short most) {
  return reinterpret_cast<U16>(_mm256_min_epu16(reinterpret_cast<__m256i>(value), _mm256_set1_epi16(most)));
}
HCCL_PY_INLINE U16 or_where_equal(U16 value, U16 what, short to, short bits) {
  return value | (reinterpret_cast<U16>(what == static_cast<std::uint16_t>(to)) & static_cast<std::uint16_t>(bits));
}
#endif

struct Float16 {
  using Acc = Accumulator<float, 2>;
  static constexpr std::size_t kSize = 2;
  static constexpr bool kKeepsBits = true;
  HCCL_PY_INLINE static Acc decode(const char* in) {
    return {{widen(load<HalfBits>(in)), widen(load<HalfBits>(in + sizeof(HalfBits)))}};
  }
  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) {
    store(out, narrow<_MM_FROUND_TO_NEAREST_INT>(acc.part[0]));
    store(out + sizeof(HalfBits), narrow<_MM_FROUND_TO_NEAREST_INT>(acc.part[1]));
  }
};

// A float8 in the upper byte of a 16-bit lane is this float16.
struct E5M2 {
  HCCL_PY_INLINE static U16 to_half(U16 code) { return code; }
  HCCL_PY_INLINE static F32 from_half_range(F32 value) { return value; }
  HCCL_PY_INLINE static F32 to_half_range(F32 value) { return value; }
  // Rounds to the upper byte. Adding up carries into the exponent and at last to infinity.
  HCCL_PY_INLINE static U16 from_half(U16 half) {
    const U16 rounded = half + std::uint16_t{0x7F} + ((half >> 8) & std::uint16_t{1});
    const I16 is_nan = reinterpret_cast<I16>(half & std::uint16_t{0x7FFF}) > std::int16_t{0x7C00};
    return is_nan ? half | std::uint16_t{0x7F00} : rounded;
  }
};

// One exponent bit less: moved down by one bit it is a float16 of 1/256 of the value, denormals included.
struct E4M3 {
  HCCL_PY_INLINE static U16 to_half(U16 code) {
    const U16 half = reinterpret_cast<U16>(reinterpret_cast<I16>(code) >> 1) & std::uint16_t{0xBF80};
    return or_where_equal(half, half & std::uint16_t{0x3F80}, 0x3F80, 0x7E00);
  }
  HCCL_PY_INLINE static F32 from_half_range(F32 value) { return value * 256.0f; }
  HCCL_PY_INLINE static F32 to_half_range(F32 value) { return value * (1.0f / 256.0f); }
  // Rounds to the bits that begin one below the top, then puts the sign above them. All that is too large is NaN.
  HCCL_PY_INLINE static U16 from_half(U16 half) {
    const U16 magnitude = limited(half & std::uint16_t{0x7FFF}, 0x3F80);
    const U16 rounded = magnitude + std::uint16_t{0x3F} + ((magnitude >> 7) & std::uint16_t{1});
    return ((rounded << 1) & std::uint16_t{0x7F00}) | (half & std::uint16_t{0x8000});
  }
};

// Parts 0 and 1 have the elements in the lower bytes of 16-bit lanes, parts 2 and 3 those in the upper bytes.
template <class Format>
struct Float8 {
  using Acc = Accumulator<float, 4>;
  static constexpr std::size_t kSize = 1;
  static constexpr bool kKeepsBits = true;

  HCCL_PY_INLINE static Acc decode(const char* in) {
    const U16 pair = load<U16>(in);
    const U16 even = Format::to_half(pair << 8);
    const U16 odd = Format::to_half(pair & std::uint16_t{0xFF00});
    return {{Format::from_half_range(widen(lower(even))), Format::from_half_range(widen(upper(even))),
             Format::from_half_range(widen(lower(odd))), Format::from_half_range(widen(upper(odd)))}};
  }

  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) {
    const U16 even = Format::from_half(joined(rounded_to_odd(acc.part[0]), rounded_to_odd(acc.part[1])));
    const U16 odd = Format::from_half(joined(rounded_to_odd(acc.part[2]), rounded_to_odd(acc.part[3])));
    store(out, (even >> 8) | (odd & std::uint16_t{0xFF00}));
  }

 private:
  // Cuts off, but leaves a one where anything was cut off. That one stands 6 bits below the leading bit: low enough
  // to be below every float8's rounding position, high enough to survive in the denormals of float16 that matter.
  HCCL_PY_INLINE static HalfBits rounded_to_odd(F32 value) {
    constexpr std::uint32_t kLast = 1u << 17;
    const U32 bits = reinterpret_cast<U32>(Format::to_half_range(value));
#if defined(HCCL_PY_WITH_AVX512)
    const __m512i wide = reinterpret_cast<__m512i>(bits);
    const __mmask16 inexact = _mm512_test_epi32_mask(wide, _mm512_set1_epi32(kLast - 1));
    const F32 odd = reinterpret_cast<F32>(_mm512_mask_or_epi32(wide, inexact, wide, _mm512_set1_epi32(kLast)));
#else
    const U32 carry = ((bits & (kLast - 1)) + (kLast - 1)) & kLast;
    const F32 odd = reinterpret_cast<F32>(bits | carry);
#endif
    return narrow<_MM_FROUND_TO_ZERO>(odd);
  }
};

using Float8E4M3 = Float8<E4M3>;
using Float8E5M2 = Float8<E5M2>;

}  // namespace hccl_py::HCCL_PY_ISA
