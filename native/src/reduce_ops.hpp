// SPDX-License-Identifier: Apache-2.0
// Operators on two vectors of accumulators: the fold so far, and the next source. The flags say which kinds of
// element an operator admits and what it becomes on bool.
#pragma once

#include "reduce_vector.hpp"

namespace hccl_py::HCCL_PY_ISA {

template <class V>
HCCL_PY_INLINE V add(V acc, V value) {
  return acc + value;
}

template <class V>
HCCL_PY_INLINE V multiply(V acc, V value) {
  return acc * value;
}

#if defined(__x86_64__)
// Of two NaNs the instructions give the first operand's. The compiler takes them for commutative and swaps operands
// as it likes, in one variant and not in the other: hence assembly, so that every variant gives the same bits.
#if defined(HCCL_PY_WITH_AVX512)
#define HCCL_PY_ORDERED(instruction) asm("v" instruction " %1, %0, %0" : "+v"(acc) : "v"(value))
#elif defined(__AVX__)
#define HCCL_PY_ORDERED(instruction) asm("v" instruction " %1, %0, %0" : "+x"(acc) : "x"(value))
#else
#define HCCL_PY_ORDERED(instruction) asm(instruction " %1, %0" : "+x"(acc) : "x"(value))
#endif

HCCL_PY_INLINE Vector<float> add(Vector<float> acc, Vector<float> value) {
  HCCL_PY_ORDERED("addps");
  return acc;
}

HCCL_PY_INLINE Vector<double> add(Vector<double> acc, Vector<double> value) {
  HCCL_PY_ORDERED("addpd");
  return acc;
}

HCCL_PY_INLINE Vector<float> multiply(Vector<float> acc, Vector<float> value) {
  HCCL_PY_ORDERED("mulps");
  return acc;
}

HCCL_PY_INLINE Vector<double> multiply(Vector<double> acc, Vector<double> value) {
  HCCL_PY_ORDERED("mulpd");
  return acc;
}
#undef HCCL_PY_ORDERED
#endif

struct OpTraits {
  static constexpr bool kFloats = true;
  static constexpr bool kIntegers = true;
  static constexpr bool kOrders = false;  // signed integers must not be taken for unsigned ones
  static constexpr bool kScales = false;
};

struct BitAnd : OpTraits {
  static constexpr bool kFloats = false;
  using OnBool = BitAnd;
  template <class V>
  HCCL_PY_INLINE static V apply(V acc, V value) {
    return acc & value;
  }
};

struct BitOr : OpTraits {
  static constexpr bool kFloats = false;
  using OnBool = BitOr;
  template <class V>
  HCCL_PY_INLINE static V apply(V acc, V value) {
    return acc | value;
  }
};

struct BitXor : OpTraits {
  static constexpr bool kFloats = false;
  using OnBool = BitXor;
  template <class V>
  HCCL_PY_INLINE static V apply(V acc, V value) {
    return acc ^ value;
  }
};

struct Sum : OpTraits {
  using OnBool = BitOr;
  template <class V>
  HCCL_PY_INLINE static V apply(V acc, V value) {
    return add(acc, value);
  }
};

struct Avg : Sum {
  static constexpr bool kIntegers = false;
  static constexpr bool kScales = true;
  using OnBool = void;
};

struct Prod : OpTraits {
  using OnBool = BitAnd;
  template <class V>
  HCCL_PY_INLINE static V apply(V acc, V value) {
    if constexpr (sizeof(V{}[0]) > 1) {
      return multiply(acc, value);
    } else {  // no CPU multiplies bytes: 16-bit products of the lower and of the upper bytes
      using U16 = Vector<std::uint16_t>;
      constexpr std::uint16_t kUpper = 0xFF00;
      const U16 a = reinterpret_cast<U16>(acc);
      const U16 b = reinterpret_cast<U16>(value);
      const U16 lower = a * b;
      const U16 upper = (a >> 8) * (b & kUpper);
      return reinterpret_cast<V>((lower & std::uint16_t{0x00FF}) | upper);
    }
  }
};

// The smaller (larger) of two; `acc` if they are equal or not comparable.
template <bool kLarger, class V>
HCCL_PY_INLINE V select(V acc, V value) {
  if constexpr (kLarger) return value > acc ? value : acc;
  return value < acc ? value : acc;
}

#if defined(__x86_64__)
// The instructions give their second operand if the operands are equal or not comparable.
template <bool kLarger>
HCCL_PY_INLINE Vector<float> select(Vector<float> acc, Vector<float> value) {
#if defined(HCCL_PY_WITH_AVX512)
  return kLarger ? _mm512_max_ps(value, acc) : _mm512_min_ps(value, acc);
#elif defined(HCCL_PY_WITH_AVX2)
  return kLarger ? _mm256_max_ps(value, acc) : _mm256_min_ps(value, acc);
#else
  return kLarger ? _mm_max_ps(value, acc) : _mm_min_ps(value, acc);
#endif
}

template <bool kLarger>
HCCL_PY_INLINE Vector<double> select(Vector<double> acc, Vector<double> value) {
#if defined(HCCL_PY_WITH_AVX512)
  return kLarger ? _mm512_max_pd(value, acc) : _mm512_min_pd(value, acc);
#elif defined(HCCL_PY_WITH_AVX2)
  return kLarger ? _mm256_max_pd(value, acc) : _mm256_min_pd(value, acc);
#else
  return kLarger ? _mm_max_pd(value, acc) : _mm_min_pd(value, acc);
#endif
}
#endif

template <bool kLarger>
struct Extremum : OpTraits {
  static constexpr bool kOrders = true;
  template <class V>
  HCCL_PY_INLINE static V apply(V acc, V value) {
    const V chosen = select<kLarger>(acc, value);
    using Lane = decltype(V{}[0] + 0);
    if constexpr (static_cast<Lane>(0.5) != 0) {  // floats: a NaN on either side stays one
      return value == value ? chosen : value;
    }
    return chosen;
  }
};

struct Min : Extremum<false> {
  using OnBool = BitAnd;
};

struct Max : Extremum<true> {
  using OnBool = BitOr;
};

}  // namespace hccl_py::HCCL_PY_ISA
