// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float, rounded to nearest even. Reference: compression/bf16.py.
#pragma once
#include "../codec_words.hpp"

namespace hp::HP_VARIANT {

struct Bf16 {
  HP_FN u32 payload(u32 n) { return 2 * n; }
  HP_FN u16 narrow(float x) {
    const u32 bits = as<u32>(x);
    const u32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return u16(magnitude(x) > kInfinityBits ? (bits >> 16 & 0x8000u) | 0x7FC0u : rounded);
  }
  HP_FN void encode(const float* x, u32, u8* out, const Draw&) {
    each([=](u32 i) {
      const u16 code = narrow(x[i]);
      HP_COPY(out + 2 * i, &code, 2);
    });
  }
  HP_FN void decode(const u8* in, u32, float* y) {
    each([=](u32 i) {
      u16 code;
      HP_COPY(&code, in + 2 * i, 2);
      y[i] = as<float>(u32(code) << 16);
    });
  }
};

}  // namespace hp::HP_VARIANT
