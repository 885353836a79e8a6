// SPDX-License-Identifier: Apache-2.0
// What int8 and int4 share: a float scale a block, and integers of -limit..limit by stochastic rounding: down or up
// with the probability that makes the mean right. A block with an infinity or a NaN is NaN altogether; one whose
// largest is under 2^-100 is zero.
#pragma once
#include "../codec_words.hpp"

namespace hp::HP_VARIANT {

constexpr u32 kTinyBits = u32(127 - 100) << 23;

template <int kLimit>
struct Quantizer {
  float scale, inverse;
  u32 keep;

  HP_FN Quantizer of(const float* x) {
    const u32 top = max_each([=](u32 i) { return magnitude(x[i]); });
    const bool bad = top >= kInfinityBits, tiny = top < kTinyBits;
    const float most = as<float>(top);
    return {bad ? as<float>(0x7FC00000u) : tiny ? 0.0f : most * (1.0f / kLimit),
            bad || tiny ? 0.0f : float(kLimit) / most, bad ? 0u : ~0u};
  }
  HP_FN i32 round(const Quantizer& q, float x, float unit) {
    const float wanted = as<float>(as<u32>(x) & q.keep) * q.inverse + unit;
    i32 value = i32(wanted);
    value -= float(value) > wanted ? 1 : 0;
    value = value < kLimit ? value : kLimit;
    return value > -kLimit ? value : -kLimit;
  }
};

}  // namespace hp::HP_VARIANT
