// SPDX-License-Identifier: Apache-2.0
// Element types: how one vector of elements in memory becomes accumulators in registers, and back.
// Narrow floats widen to float32; which element goes to which accumulator is each type's own affair, so that no
// shuffle is needed where a shift will do. float16 and the float8 types: reduce_elements_{bits,f16c}.hpp.
#pragma once

#include "reduce_vector.hpp"

namespace hccl_py::HCCL_PY_ISA {

template <class T, int kParts>
struct Accumulator {
  using Lane = T;
  static constexpr int kNumParts = kParts;
  Vector<T> part[kParts];
};

// Accumulates in its own type.
template <class T>
struct Plain {
  using Acc = Accumulator<T, 1>;
  static constexpr std::size_t kSize = sizeof(T);
  static constexpr bool kKeepsBits = true;
  HCCL_PY_INLINE static Acc decode(const char* in) { return {{load<Vector<T>>(in)}}; }
  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) { store(out, acc.part[0]); }
};

// Any byte but zero is true; what leaves is 0 or 1.
struct Bool {
  using Acc = Accumulator<std::uint8_t, 1>;
  static constexpr std::size_t kSize = 1;
  static constexpr bool kKeepsBits = false;
  HCCL_PY_INLINE static Acc decode(const char* in) {
    const Vector<std::uint8_t> value = load<Vector<std::uint8_t>>(in);
#if defined(HCCL_PY_WITH_AVX512)
    const __m512i least = _mm512_min_epu8(reinterpret_cast<__m512i>(value), _mm512_set1_epi8(1));
    return {{reinterpret_cast<Vector<std::uint8_t>>(least)}};
#else
    return {{reinterpret_cast<Vector<std::uint8_t>>(value == 0) + std::uint8_t{1}}};  // a true lane of a mask is -1
#endif
  }
  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) { store(out, acc.part[0]); }
};

// Part 0 has the elements in the lower halves of 32-bit lanes, part 1 those in the upper halves.
struct BFloat16 {
  using Acc = Accumulator<float, 2>;
  static constexpr std::size_t kSize = 2;
  static constexpr bool kKeepsBits = true;
  HCCL_PY_INLINE static Acc decode(const char* in) {
    const U32 pair = load<U32>(in);
    return {{reinterpret_cast<F32>(pair << 16), reinterpret_cast<F32>(pair & 0xFFFF0000u)}};
  }
  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) {
    store(out, (rounded(acc.part[0]) >> 16) | (rounded(acc.part[1]) & 0xFFFF0000u));
  }

 private:
  // No case for NaN: one that comes from bfloat16 operands (or from the CPU) has a zero lower half, so that rounding
  // leaves it as it is. The hardware's own conversion is no alternative: it makes zeros of denormals.
  HCCL_PY_INLINE static U32 rounded(F32 value) {
    const U32 bits = reinterpret_cast<U32>(value);
#if defined(HCCL_PY_WITH_AVX512)
    const __m512i wide = reinterpret_cast<__m512i>(bits);
    const __mmask16 odd = _mm512_test_epi32_mask(wide, _mm512_set1_epi32(0x10000));
    const __m512i half = reinterpret_cast<__m512i>(bits + 0x7FFFu);
    return reinterpret_cast<U32>(_mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1)));
#else
    return bits + 0x7FFFu + ((bits >> 16) & 1u);
#endif
  }
};

}  // namespace hccl_py::HCCL_PY_ISA
