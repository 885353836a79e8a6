// SPDX-License-Identifier: Apache-2.0
// One bit an element, its sign, and the mean magnitude of the block as the size of all. Reference: compression/sign.py.
#pragma once
#include "../codec_words.hpp"

namespace hp::HP_VARIANT {

struct Sign {
  HP_FN u32 payload(u32 n) { return 4 + (n + 7) / 8; }
  HP_FN void encode(const float* x, u32 n, u8* out, const Draw&) {
    const u32 top = max_each([=](u32 i) { return magnitude(x[i]); });
    // Divided first: the sum of huge numbers must not overflow.
    const float sum = sum_each([=](u32 i) { return as<float>(magnitude(x[i])) * (1.0f / kBlock); });
    const float mean = sum * (float(kBlock) / float(n));
    const float most = as<float>(kInfinityBits - 1);
    if (first_lane()) put_float(out, top >= kInfinityBits ? as<float>(0x7FC00000u) : mean < most ? mean : most);
    each<kBlock / 8>([=](u32 j) {
      u32 bits = 0;
      for (u32 b = 0; b < 8; ++b) bits |= (as<u32>(x[8 * j + b]) >> 31) << b;
      out[4 + j] = u8(bits);
    });
  }
  HP_FN void decode(const u8* in, u32, float* y) {
    const u32 scale = as<u32>(get_float(in)) & 0x7FFFFFFFu;
    each([=](u32 i) { y[i] = as<float>(scale | (u32(in[4 + i / 8]) >> (i % 8) & 1u) << 31); });
  }
};

}  // namespace hp::HP_VARIANT
