// SPDX-License-Identifier: Apache-2.0
// int4: a float scale a block, then two elements a byte, the even one in the lower half. Reference: compression/int4.py.
#pragma once
#include "quantize.hpp"

namespace hp::HP_VARIANT {

struct Int4 {
  typedef Quantizer<7> Q;
  HP_FN u32 payload(u32 n) { return 4 + (n + 1) / 2; }
  HP_FN void encode(const float* x, u32, u8* out, const Draw& draw) {
    const Q q = Q::of(x);
    const Draw d = draw;
    if (first_lane()) put_float(out, q.scale);
    each<kBlock / 2>([=](u32 j) {
      const i32 even = Q::round(q, x[2 * j], Draw::unit(d, 2 * j));
      const i32 odd = Q::round(q, x[2 * j + 1], Draw::unit(d, 2 * j + 1));
      out[4 + j] = u8((even & 15) | (odd & 15) << 4);
    });
  }
  HP_FN void decode(const u8* in, u32, float* y) {
    const float scale = get_float(in);
    each<kBlock / 2>([=](u32 j) {
      const i32 both = i8(in[4 + j]);
      y[2 * j] = times(scale, float(i32(u32(both) << 28) >> 28));
      y[2 * j + 1] = times(scale, float(both >> 4));
    });
  }
};

}  // namespace hp::HP_VARIANT
