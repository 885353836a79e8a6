// SPDX-License-Identifier: Apache-2.0
// The lossless codec, for one variant of the CPU (HCCL_PY_ISA). Reference: compression/lossless.py, which says what a
// code looks like. A block's exponents are coded as distances below the largest; those that do not fit are listed.
#pragma once

#include <cstring>

#include "hccl_py/codecs.hpp"

namespace hp::HCCL_PY_ISA {

struct Lossless {
  static constexpr u8 kWidth = 15, kNoLow = 16, kNoHigh = 32, kZeros = 64;  // of a block's second byte
  static constexpr u32 kHeader = 3;

  static std::size_t encode(const u32* x, std::int64_t count, u8* out) {
    u8* to = out;
    for (; count >= kBlock; count -= kBlock, x += kBlock) to = encode_block(x, to);
    if (count > 0) to = encode_end(x, static_cast<u32>(count), to);
    return static_cast<std::size_t>(to - out);
  }

  static bool decode(const u8* in, std::size_t bytes, void* out, std::int64_t count, bool add) {
    const u8* const end = in + bytes;
    u8* to = static_cast<u8*>(out);
    alignas(64) u32 x[kBlock];
    while (count > 0) {
      const u32 n = static_cast<u32>(count < kBlock ? count : kBlock);
      in = n == kBlock ? decode_block(in, end, x) : decode_end(in, end, n, x);
      if (in == nullptr) return false;
      if (add) {
        float* sum = reinterpret_cast<float*>(to);
        for (u32 i = 0; i < n; ++i) sum[i] = sum[i] + as<float>(x[i]);
      } else {
        std::memcpy(to, x, 4 * n);
      }
      to += 4 * n;
      count -= n;
    }
    return in == end;
  }

 private:
  // How many distances are `limit` or more; at least one is 0.
  [[gnu::always_inline]] static inline u32 at_least(const u8* distance, u8 limit) {
    constexpr u32 kLane = 64;
    alignas(64) u8 lane[kLane] = {};
    for (u32 row = 0; row < kBlock; row += kLane)
      for (u32 l = 0; l < kLane; ++l) lane[l] = u8(lane[l] + (distance[row + l] >= limit ? 1 : 0));
    u64 sum = 0;
    for (u32 l = 0; l < kLane; l += 8) {
      u64 word;
      std::memcpy(&word, lane + l, 8);
      sum += word;  // eight counts of 32 at most
    }
    return u32((sum * 0x0101010101010101u) >> 56);  // 255 at most
  }

  // Of 1 << bits distances a byte: those of the block's parts, one after the other.
  template <u32 kBits, u32 kShift>
  [[gnu::always_inline]] static inline u8* put_plane(const u8* distance, u8* out) {
    constexpr u32 kParts = 8 / kBits, kSize = kBlock / kParts;
    for (u32 i = 0; i < kSize; ++i) {
      u8 byte = 0;
      for (u32 part = 0; part < kParts; ++part)
        byte = u8(byte | u8((distance[part * kSize + i] >> kShift) & ((1 << kBits) - 1)) << (part * kBits));
      out[i] = byte;
    }
    return out + kSize;
  }
  template <u32 kBits, u32 kShift>
  [[gnu::always_inline]] static inline const u8* get_plane(const u8* in, u8* distance) {
    constexpr u32 kParts = 8 / kBits, kSize = kBlock / kParts;
    for (u32 part = 0; part < kParts; ++part)
      for (u32 i = 0; i < kSize; ++i) {
        const u8 bits = u8((in[i] >> (part * kBits)) & ((1 << kBits) - 1));
        distance[part * kSize + i] = u8(distance[part * kSize + i] | bits << kShift);
      }
    return in + kSize;
  }

  // The low bits first: four, two and one of them, as the width has them.
  [[gnu::always_inline]] static inline u8* put_distances(const u8* distance, u32 width, u8* out) {
    switch (width) {
      case 1: return put_plane<1, 0>(distance, out);
      case 2: return put_plane<2, 0>(distance, out);
      case 3: return put_plane<1, 2>(distance, put_plane<2, 0>(distance, out));
      case 4: return put_plane<4, 0>(distance, out);
      case 5: return put_plane<1, 4>(distance, put_plane<4, 0>(distance, out));
      case 6: return put_plane<2, 4>(distance, put_plane<4, 0>(distance, out));
      case 7: return put_plane<1, 6>(distance, put_plane<2, 4>(distance, put_plane<4, 0>(distance, out)));
      default: return out;
    }
  }
  [[gnu::always_inline]] static inline const u8* get_distances(const u8* in, u32 width, u8* distance) {
    switch (width) {
      case 1: return get_plane<1, 0>(in, distance);
      case 2: return get_plane<2, 0>(in, distance);
      case 3: return get_plane<1, 2>(get_plane<2, 0>(in, distance), distance);
      case 4: return get_plane<4, 0>(in, distance);
      case 5: return get_plane<1, 4>(get_plane<4, 0>(in, distance), distance);
      case 6: return get_plane<2, 4>(get_plane<4, 0>(in, distance), distance);
      case 7: return get_plane<1, 6>(get_plane<2, 4>(get_plane<4, 0>(in, distance), distance), distance);
      default: return in;
    }
  }

  static u8* encode_block(const u32* x, u8* out) {
    alignas(64) u16 low[kBlock];
    alignas(64) u8 high[kBlock], exponent[kBlock], distance[kBlock];
    u32 any = 0;
    u8 top = 0, bottom = 255;
    for (u32 i = 0; i < kBlock; ++i) any |= x[i];
    for (u32 i = 0; i < kBlock; ++i) low[i] = u16(x[i]);
    for (u32 i = 0; i < kBlock; ++i) high[i] = u8((x[i] >> 16 & 0x7Fu) | (x[i] >> 24 & 0x80u));
    for (u32 i = 0; i < kBlock; ++i) exponent[i] = u8(x[i] >> 23);
    for (u32 i = 0; i < kBlock; ++i) top = exponent[i] > top ? exponent[i] : top;
    for (u32 i = 0; i < kBlock; ++i) bottom = exponent[i] < bottom ? exponent[i] : bottom;
    for (u32 i = 0; i < kBlock; ++i) distance[i] = u8(top - exponent[i]);
    const bool zeros = bottom == 0 && top != 0;
    if (zeros)
      for (u32 i = 0; i < kBlock; ++i) distance[i] = exponent[i] == 0 ? 0 : distance[i];
    u32 width = 8, escapes = 0, best = kBlock;
    for (u32 w = 8; w-- > (zeros ? 1 : 0);) {
      const u32 n = at_least(distance, u8((1u << w) - zeros)), size = kBlock / 8 * w + 2 * n;
      if (size <= best) width = w, escapes = n, best = size;
    }
    const bool no_low = (any & 0xFFFFu) == 0, no_high = (any & 0x807F0000u) == 0;
    out[0] = top;
    out[1] = u8(width | (no_low ? kNoLow : 0) | (no_high ? kNoHigh : 0) | (zeros && width < 8 ? kZeros : 0));
    out[2] = u8(escapes);
    u8* to = out + kHeader;
    if (!no_low) std::memcpy(to, low, sizeof low), to += sizeof low;
    if (!no_high) std::memcpy(to, high, sizeof high), to += sizeof high;
    if (width == 8) {
      for (u32 i = 0; i < kBlock; ++i) to[i] = u8(top - exponent[i]);
      return to + kBlock;
    }
    const u8 limit = u8((1u << width) - zeros);
    if (escapes > 0) put_escapes(distance, exponent, limit, escapes, to + kBlock / 8 * width);
    if (zeros)
      for (u32 i = 0; i < kBlock; ++i) distance[i] = exponent[i] == 0 ? limit : distance[i];
    to = put_distances(distance, width, to);
    return to + 2 * escapes;
  }

  // Places first, then exponents.
  [[gnu::always_inline]] static inline void put_escapes(const u8* distance, const u8* exponent, u8 limit, u32 n, u8* out) {
    alignas(64) u8 far[kBlock];
    for (u32 i = 0; i < kBlock; ++i) far[i] = distance[i] >= limit ? 1 : 0;
    u32 k = 0;
    for (u32 row = 0; row < kBlock; row += 8) {
      u64 word;
      std::memcpy(&word, far + row, 8);
      for (; word != 0; word &= word - 1, ++k) {
        const u32 i = row + u32(__builtin_ctzll(word)) / 8;
        out[k] = u8(i);
        out[n + k] = exponent[i];
      }
    }
  }

  // The code's end, or null where it is none.
  static const u8* decode_block(const u8* in, const u8* end, u32* x) {
    if (end - in < std::ptrdiff_t(kHeader)) return nullptr;
    const u8 top = in[0], flags = in[1], n = in[2];
    const u32 width = flags & kWidth;
    const bool no_low = (flags & kNoLow) != 0, no_high = (flags & kNoHigh) != 0, zeros = (flags & kZeros) != 0;
    in += kHeader;
    const std::size_t size = (no_low ? 0 : 2 * kBlock) + (no_high ? 0 : kBlock) + kBlock / 8 * width + 2u * n;
    if (flags > (kWidth | kNoLow | kNoHigh | kZeros) || width > 8 || (width == 8 && n > 0)) return nullptr;
    if ((zeros && (width == 0 || width == 8)) || std::size_t(end - in) < size) return nullptr;
    alignas(64) u16 low[kBlock];
    alignas(64) u8 high[kBlock], distance[kBlock];
    if (no_low) std::memset(low, 0, sizeof low); else std::memcpy(low, in, sizeof low), in += sizeof low;
    if (no_high) std::memset(high, 0, sizeof high); else std::memcpy(high, in, sizeof high), in += sizeof high;
    if (width == 8) {
      std::memcpy(distance, in, sizeof distance);
      in += sizeof distance;
    } else {
      std::memset(distance, 0, sizeof distance);
      in = get_distances(in, width, distance);
    }
    const u8 zero = u8((1u << width) - 1);
    if (zeros)
      for (u32 i = 0; i < kBlock; ++i) distance[i] = distance[i] == zero ? top : distance[i];
    for (u32 i = 0; i < kBlock; ++i)
      x[i] = low[i] | (high[i] & 0x7Fu) << 16 | (high[i] & 0x80u) << 24 | u32(u8(top - distance[i])) << 23;
    for (u32 k = 0; k < n; ++k) {
      if (k > 0 && in[k] <= in[k - 1]) return nullptr;
      x[in[k]] = (x[in[k]] & 0x807FFFFFu) | u32(in[n + k]) << 23;
    }
    return in + 2 * n;
  }

  // Fewer than a block: words, or their upper halves where the lower ones are zero.
  static u8* encode_end(const u32* x, u32 n, u8* out) {
    u32 any = 0;
    for (u32 i = 0; i < n; ++i) any |= x[i];
    const bool halves = (any & 0xFFFFu) == 0;
    *out++ = halves ? 1 : 0;
    if (!halves) {
      std::memcpy(out, x, 4 * n);
      return out + 4 * n;
    }
    for (u32 i = 0; i < n; ++i) {
      const u16 half = u16(x[i] >> 16);
      std::memcpy(out + 2 * i, &half, 2);
    }
    return out + 2 * n;
  }
  static const u8* decode_end(const u8* in, const u8* end, u32 n, u32* x) {
    if (end - in < 1 || in[0] > 1) return nullptr;
    const bool halves = *in++ == 1;
    const std::size_t size = (halves ? 2u : 4u) * n;
    if (std::size_t(end - in) < size) return nullptr;
    if (!halves) std::memcpy(x, in, size);
    for (u32 i = 0; halves && i < n; ++i) {
      u16 half;
      std::memcpy(&half, in + 2 * i, 2);
      x[i] = u32(half) << 16;
    }
    return in + size;
  }
};

hccl_py::LosslessCodec lossless_codec() { return {&Lossless::encode, &Lossless::decode}; }

}  // namespace hp::HCCL_PY_ISA
