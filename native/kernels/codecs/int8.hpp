// SPDX-License-Identifier: Apache-2.0
// int8: a float scale a block, then a byte an element. Reference: compression/int8.py.
#pragma once
#include "quantize.hpp"

namespace hp::HP_VARIANT {

struct Int8 {
  typedef Quantizer<127> Q;
  HP_FN u32 payload(u32 n) { return 4 + n; }
  HP_FN void encode(const float* x, u32, u8* out, const Draw& draw) {
    const Q q = Q::of(x);
    const Draw d = draw;
    if (first_lane()) put_float(out, q.scale);
    each([=](u32 i) { out[4 + i] = u8(Q::round(q, x[i], Draw::unit(d, i))); });
  }
  HP_FN void decode(const u8* in, u32, float* y) {
    const float scale = get_float(in);
    each([=](u32 i) { y[i] = times(scale, float(i8(in[4 + i]))); });
  }
};

}  // namespace hp::HP_VARIANT
