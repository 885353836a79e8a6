// SPDX-License-Identifier: Apache-2.0
// float8 (e4m3, e5m2) with a power of two a block, so that nothing overflows: one byte of shift, then the codes.
// A block with an infinity or a NaN is NaN altogether. Reference: compression/fp8.py.
#pragma once
#include "../codec_words.hpp"

namespace hp::HP_VARIANT {

// kTop: the exponent to which the block's largest is moved, one below the format's largest.
template <class Format, int kTop>
struct Fp8 {
  static constexpr int kMostShift = 120;
  static constexpr int kBad = -128;

  HP_FN u32 payload(u32 n) { return 1 + n; }
  HP_FN float power(int shift) { return as<float>(u32(127 + shift) << 23); }
  HP_FN void encode(const float* x, u32, u8* out, const Draw&) {
    const u32 top = max_each([=](u32 i) { return magnitude(x[i]); });
    const int wanted = kTop - (int(top >> 23) - 127);
    const int shift = wanted < kMostShift ? wanted : kMostShift;
    const bool bad = top >= kInfinityBits;
    const u32 keep = bad ? 0u : ~0u;
    const float factor = power(bad ? 0 : shift);
    if (first_lane()) out[0] = u8(i8(bad ? kBad : shift));
    each([=](u32 i) { out[1 + i] = u8(Format::encode(as<float>(as<u32>(x[i]) & keep) * factor)); });
  }
  HP_FN void decode(const u8* in, u32, float* y) {
    const int shift = i8(in[0]);
    const bool bad = shift < -kMostShift || shift > kMostShift;
    const float factor = bad ? as<float>(0x7FC00000u) : power(-shift);
    each([=](u32 i) { y[i] = times(Format::decode(in[1 + i]), factor); });
  }
};

typedef Fp8<Small<4, 3, false>, 7> Fp8E4M3;
typedef Fp8<Small<5, 2, true>, 14> Fp8E5M2;

}  // namespace hp::HP_VARIANT
