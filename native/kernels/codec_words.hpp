// SPDX-License-Identifier: Apache-2.0
// The words in which block codecs are written, for the host and for a CUDA device. A block of kBlock elements is worked
// on by kLanes lanes: a warp on the device; on the host one thread runs all lanes, and the compiler makes vectors of
// them. Every result is the same bits on both: sums have one order (lane by lane, then halves), nothing is fused.
// HP_VARIANT: a namespace; host files may be compiled several times, with other flags and another one.
#pragma once

#ifdef HP_HOST
#define HP_FN [[gnu::always_inline]] static inline
#define HP_COPY __builtin_memcpy
#else
#define HP_COPY memcpy
#define HP_FN static __device__ __forceinline__
#endif

namespace hp::HP_VARIANT {

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

constexpr u32 kBlock = 256;
constexpr u32 kLanes = 32;
constexpr u32 kInfinityBits = 0x7F800000u;

template <class To, class From>
HP_FN To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  HP_COPY(&to, &from, sizeof to);
  return to;
}
HP_FN u32 magnitude(float x) { return as<u32>(x) & 0x7FFFFFFFu; }
// No multiply-add: the device's compiler is told so by -fmad=false, the host's by -ffp-contract=off.

#ifdef HP_HOST

template <u32 kCount = kBlock, class F>
HP_FN void each(F f) {
#pragma GCC ivdep
  for (u32 i = 0; i < kCount; ++i) f(i);
}
template <class F>
HP_FN u32 max_each(F f) {
  u32 most = 0;
  for (u32 i = 0; i < kBlock; ++i) {
    const u32 v = f(i);
    most = v > most ? v : most;
  }
  return most;
}
template <class F>
HP_FN float sum_each(F f) {
  float lane[kLanes];
  for (u32 l = 0; l < kLanes; ++l) lane[l] = f(l);
  for (u32 row = kLanes; row < kBlock; row += kLanes)
    for (u32 l = 0; l < kLanes; ++l) lane[l] = lane[l] + f(row + l);
  for (u32 half = kLanes / 2; half > 0; half /= 2)
    for (u32 l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
  return lane[0];
}
HP_FN bool first_lane() { return true; }
// a * b, with the bits of an operand that is NaN.
HP_FN float times(float a, float b) { return a * b; }

#else

template <u32 kCount = kBlock, class F>
HP_FN void each(F f) {
  for (u32 i = threadIdx.x % kLanes; i < kCount; i += kLanes) f(i);
}
template <class F>
HP_FN u32 max_each(F f) {
  u32 most = 0;
  for (u32 i = threadIdx.x % kLanes; i < kBlock; i += kLanes) most = max(most, f(i));
  return __reduce_max_sync(~0u, most);
}
template <class F>
HP_FN float sum_each(F f) {
  float sum = f(threadIdx.x % kLanes);
  for (u32 i = threadIdx.x % kLanes + kLanes; i < kBlock; i += kLanes) sum = sum + f(i);
  for (u32 half = kLanes / 2; half > 0; half /= 2) sum = sum + __shfl_down_sync(~0u, sum, half);
  return __shfl_sync(~0u, sum, 0);
}
HP_FN bool first_lane() { return threadIdx.x % kLanes == 0; }
// Its own product would have the same bits for all NaN.
HP_FN float times(float a, float b) { return magnitude(a) > kInfinityBits ? a : magnitude(b) > kInfinityBits ? b : a * b; }

#endif

// Random numbers that are a function of what they are for: `key` mixes seed, parameter, step and rank, `first` is the
// offset of the block in its parameter. Two rounds of multiply and shift; see compression/counter.py.
struct Draw {
  u32 first, low, high;

  HP_FN Draw of(u64 key, u64 offset) {
    return {u32(offset), u32(key) ^ (u32(offset >> 32) * 0x85EBCA6Bu), u32(key >> 32)};
  }
  // 32 bits for element i of the block.
  HP_FN u32 bits(const Draw& d, u32 i) {
    u32 x = (d.first + i) ^ d.low;
    x = (x ^ (x >> 16)) * 0x7FEB352Du + d.high;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
  }
  // In [0, 1), a multiple of 2^-24.
  HP_FN float unit(const Draw& d, u32 i) { return float(i32(bits(d, i) >> 8)) * 0x1p-24f; }
};

// A float of four unaligned bytes.
HP_FN void put_float(u8* out, float value) { HP_COPY(out, &value, 4); }
HP_FN float get_float(const u8* in) {
  float value;
  HP_COPY(&value, in, 4);
  return value;
}

// Small floats on the bits, rounded to nearest even, denormals kept; too large: infinity, or NaN where there is none.
template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct Small {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr u32 kMagnitude = (1u << (kExponentBits + kMantissaBits)) - 1;
  static constexpr u32 kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr u32 kOverflow = kHasInfinity ? kInfinity : kMagnitude;
  static constexpr u32 kNan = kHasInfinity ? kInfinity | (1u << (kMantissaBits - 1)) : kMagnitude;
  static constexpr u32 kRebias = u32(127 - kBias) << 23;
  static constexpr u32 kSmallestNormal = u32(128 - kBias) << 23;
  static constexpr u32 kDenormalMagic = u32(151 - kBias - kMantissaBits) << 23;

  HP_FN u32 encode(float value) {
    const u32 size = magnitude(value), sign = (as<u32>(value) ^ size) >> kSignShift;
    const u32 normal = (size + ((size >> kShift) & 1u) + ((1u << (kShift - 1)) - 1 - kRebias)) >> kShift;
    const u32 denormal = as<u32>(as<float>(size) + as<float>(kDenormalMagic)) - kDenormalMagic;
    u32 code = size < kSmallestNormal ? denormal : normal;
    code = code < kOverflow ? code : kOverflow;
    code = size > kInfinityBits ? kNan : code;
    return code | sign;
  }
  HP_FN float decode(u32 code) {
    const u32 size = code & kMagnitude, sign = (code ^ size) << kSignShift;
    const u32 denormal = size < (1u << kMantissaBits) ? ~0u : 0u;
    const u32 wide = (size << kShift) + kRebias + (denormal & (1u << 23));
    u32 number = as<u32>(as<float>(wide) - as<float>(denormal & kSmallestNormal));
    // Not by arithmetic: a device gives all NaN the same bits. Quiet, as arithmetic makes them.
    const u32 quiet = size > kInfinity ? 0x400000u : 0u;
    if (kHasInfinity) number = size >= kInfinity ? (size << kShift) | kInfinityBits | quiet : number;
    if (!kHasInfinity) number = size == kMagnitude ? 0x7FC00000u : number;
    return as<float>(number | sign);
  }
};

}  // namespace hp::HP_VARIANT
