// SPDX-License-Identifier: Apache-2.0
// Small floats to float32 and back, exactly, on the bits: float16 (5, 10), float8_e5m2 (5, 2), float8_e4m3fn (4, 3).
// One code per 32-bit lane. Rounds to nearest even, keeps denormals; no branch, no slow denormal arithmetic.
#pragma once

#include "reduce_vector.hpp"

namespace hccl_py::HCCL_PY_ISA {

template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr std::uint32_t kMagnitude = (1u << (kExponentBits + kMantissaBits)) - 1;
  static constexpr std::uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - kBias) << 23;  // as float32
  // Added to a magnitude below kSmallestNormal, the hardware's own rounding leaves the code in the lowest bits.
  static constexpr std::uint32_t kDenormalMagic = static_cast<std::uint32_t>(151 - kBias - kMantissaBits) << 23;

  // `code` has no bits beyond the small float.
  HCCL_PY_INLINE static F32 decode(U32 code) {
    const U32 magnitude = code & kMagnitude;
    const U32 sign = (code ^ magnitude) << kSignShift;
    const U32 denormal = reinterpret_cast<U32>(reinterpret_cast<I32>(magnitude) < (1 << kMantissaBits));
    // Denormals and zero get the implicit one of the smallest normal, which is subtracted again.
    U32 wide = (magnitude << kShift) + kRebias + (denormal & (1u << 23));
    if constexpr (kHasInfinity) {
      const U32 special = reinterpret_cast<U32>(reinterpret_cast<I32>(magnitude) >= static_cast<int>(kInfinity));
      wide += special & (0x7F800000u - (kInfinity << kShift) - kRebias);
    } else {
      wide |= reinterpret_cast<U32>(magnitude == kMagnitude) & 0x7FC00000u;
    }
    const F32 value = reinterpret_cast<F32>(wide) - reinterpret_cast<F32>(denormal & kSmallestNormal);
    return reinterpret_cast<F32>(reinterpret_cast<U32>(value) | sign);
  }

  HCCL_PY_INLINE static U32 encode(F32 value) {
    const U32 bits = reinterpret_cast<U32>(value);
    const U32 magnitude = bits & 0x7FFFFFFFu;
    const U32 sign = (bits ^ magnitude) >> kSignShift;
    const U32 odd = (magnitude >> kShift) & 1u;
    const U32 normal = (magnitude + odd + ((1u << (kShift - 1)) - 1 - kRebias)) >> kShift;
    const F32 magic = reinterpret_cast<F32>(U32{} + kDenormalMagic);
    const U32 denormal = reinterpret_cast<U32>(reinterpret_cast<F32>(magnitude) + magic) - kDenormalMagic;
    const I32 is_small = reinterpret_cast<I32>(magnitude) < static_cast<int>(kSmallestNormal);
    I32 code = is_small ? reinterpret_cast<I32>(denormal) : reinterpret_cast<I32>(normal);
    // Too large: infinity, or the NaN of a format without one. A NaN has larger bits than any number.
    constexpr int kOverflow = kHasInfinity ? kInfinity : kMagnitude;
    code = code < kOverflow ? code : I32{} + kOverflow;
    if constexpr (kHasInfinity) {
      const I32 is_nan = reinterpret_cast<I32>(magnitude) > 0x7F800000;
      code |= is_nan & nan_code(magnitude);
    }
    return reinterpret_cast<U32>(code) | sign;
  }

 private:
  // float16 keeps the upper payload and becomes quiet, as the hardware's conversion does; float8_e5m2 has one NaN.
  HCCL_PY_INLINE static I32 nan_code(U32 magnitude) {
    if constexpr (kMantissaBits < 10) return I32{} + static_cast<int>(kMagnitude);
    return reinterpret_cast<I32>((magnitude >> kShift) & kMagnitude) | static_cast<int>(1u << (kMantissaBits - 1));
  }
};

}  // namespace hccl_py::HCCL_PY_ISA
