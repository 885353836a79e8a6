// SPDX-License-Identifier: Apache-2.0
// float16 and the float8 types for CPUs without conversions of float16: by their bits.
#pragma once

#include "reduce_elements.hpp"
#include "reduce_float_bits.hpp"

namespace hccl_py::HCCL_PY_ISA {

// Parts as of BFloat16.
struct Float16 {
  using Acc = Accumulator<float, 2>;
  using Bits = SmallFloat<5, 10, true>;
  static constexpr std::size_t kSize = 2;
  static constexpr bool kKeepsBits = true;
  HCCL_PY_INLINE static Acc decode(const char* in) {
    const U32 pair = load<U32>(in);
    return {{Bits::decode(pair & 0xFFFFu), Bits::decode(pair >> 16)}};
  }
  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) {
    store(out, Bits::encode(acc.part[0]) | (Bits::encode(acc.part[1]) << 16));
  }
};

// Part k has the elements in byte k of 32-bit lanes.
template <class Bits>
struct Float8 {
  using Acc = Accumulator<float, 4>;
  static constexpr std::size_t kSize = 1;
  static constexpr bool kKeepsBits = true;
  HCCL_PY_INLINE static Acc decode(const char* in) {
    const U32 quad = load<U32>(in);
    return {{Bits::decode(quad & 0xFFu), Bits::decode((quad >> 8) & 0xFFu), Bits::decode((quad >> 16) & 0xFFu),
             Bits::decode(quad >> 24)}};
  }
  HCCL_PY_INLINE static void encode(char* out, const Acc& acc) {
    store(out, Bits::encode(acc.part[0]) | (Bits::encode(acc.part[1]) << 8) | (Bits::encode(acc.part[2]) << 16) |
                   (Bits::encode(acc.part[3]) << 24));
  }
};

using Float8E4M3 = Float8<SmallFloat<4, 3, false>>;
using Float8E5M2 = Float8<SmallFloat<5, 2, true>>;

}  // namespace hccl_py::HCCL_PY_ISA
