// SPDX-License-Identifier: Apache-2.0
// float16: rounded to nearest even, too large becomes infinity. Reference: compression/fp16.py.
#pragma once
#include "../codec_words.hpp"

namespace hp::HP_VARIANT {

struct Fp16 {
  typedef Small<5, 10, true> Format;
  HP_FN u32 payload(u32 n) { return 2 * n; }
  HP_FN void encode(const float* x, u32, u8* out, const Draw&) {
    each([=](u32 i) {
      const u16 code = u16(Format::encode(x[i]));
      HP_COPY(out + 2 * i, &code, 2);
    });
  }
  HP_FN void decode(const u8* in, u32, float* y) {
    each([=](u32 i) {
      u16 code;
      HP_COPY(&code, in + 2 * i, 2);
      y[i] = Format::decode(code);
    });
  }
};

}  // namespace hp::HP_VARIANT
