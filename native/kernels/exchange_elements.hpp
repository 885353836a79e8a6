// SPDX-License-Identifier: Apache-2.0
// Elements of the exchange kernels: vectors of 16 bytes as they travel, and folds of them. The fold is by rank, in
// float for the types under 32 bits, with one rounding at the end; what a rank adds of its own is rounded to the wire
// type first, so that all ranks get the same bits.
// Included by exchange.hpp only, once a variant.

namespace hp::HP_VARIANT {

template <int D> struct Type;  // DType of hccl_py/core/types.py
#define HP_PLAIN_TYPE(number, type)                    \
  template <> struct Type<number> {                    \
    typedef type Bits;                                 \
    typedef type Acc;                                  \
    HP_DEV Acc decode(Bits b) { return b; }            \
    HP_DEV Bits encode(Acc a) { return a; }            \
  };
#define HP_SMALL_FLOAT(number, bits, name)                        \
  template <> struct Type<number> {                               \
    typedef bits Bits;                                            \
    typedef float Acc;                                            \
    HP_DEV Acc decode(Bits b) { return name##_to_float(b); }      \
    HP_DEV Bits encode(Acc a) { return float_to_##name(a); }      \
  };
HP_PLAIN_TYPE(0, double)
HP_PLAIN_TYPE(1, float)
HP_SMALL_FLOAT(2, u16, f16)
HP_SMALL_FLOAT(3, u16, bf16)
HP_SMALL_FLOAT(4, u8, e4m3)
HP_SMALL_FLOAT(5, u8, e5m2)
HP_PLAIN_TYPE(6, i8)
HP_PLAIN_TYPE(7, i16)
HP_PLAIN_TYPE(8, i32)
HP_PLAIN_TYPE(9, i64)
HP_PLAIN_TYPE(10, u8)
HP_PLAIN_TYPE(11, u16)
HP_PLAIN_TYPE(12, u32)
HP_PLAIN_TYPE(13, u64)
HP_PLAIN_TYPE(14, u8)
#undef HP_PLAIN_TYPE
#undef HP_SMALL_FLOAT

typedef Type<HP_ELEM> Elem;
typedef Type<HP_WIRE> Wire;
typedef Elem::Acc Acc;
constexpr u32 kElemBytes = sizeof(Elem::Bits), kWireBytes = sizeof(Wire::Bits);
constexpr u32 kPerVector = 16 / kWireBytes;           // elements in a vector of the wire
constexpr u32 kWide = kElemBytes / kWireBytes;        // vectors of memory for one of the wire: 1, or 2 where cast
constexpr bool kBool = HP_ELEM == 14, kFloat = HP_ELEM <= 5;

union Bits16 {
  Vec v;
  Wire::Bits wire[kPerVector];
  Elem::Bits elem[16 / kElemBytes];
  u64 longs[2];
  u32 words[4];
  u16 shorts[8];
  u8 bytes[16];
};

template <class T> HP_DEV bool is_nan(T a) { return !(a == a); }

// Of floats, a NaN wins.
HP_DEV Acc combine(Acc a, Acc b) {
#if HP_OP < 0
  return a;
#endif
  if (kBool) return Acc(HP_OP == 0 || HP_OP == 4 || HP_OP == 6 ? (a || b) : HP_OP == 7 ? ((a != 0) != (b != 0)) : (a && b));
#if HP_OP < 0
#elif HP_OP <= 1
  return Acc(a + b);
#elif HP_OP == 2
  return Acc(a * b);
#elif HP_OP == 3
  if (kFloat && is_nan(a)) return a;
  return (kFloat && is_nan(b)) || b < a ? b : a;
#elif HP_OP == 4
  if (kFloat && is_nan(a)) return a;
  return (kFloat && is_nan(b)) || a < b ? b : a;
#elif HP_ELEM > 5 && HP_OP == 5
  return Acc(a & b);
#elif HP_ELEM > 5 && HP_OP == 6
  return Acc(a | b);
#elif HP_ELEM > 5 && HP_OP == 7
  return Acc(a ^ b);
#else
#error "the operator is not defined on this type"
#endif
}

HP_DEV bool is_aligned(u64 address) { return (address & 15) == 0; }

// What is not 16-byte aligned, or the last vector: by the largest pieces that fit. Seldom, and kept out of the way.
HP_APART Vec load_bytes(const char* p, u32 bytes) {
  Bits16 b;
  b.longs[0] = b.longs[1] = 0;
  const u64 all = u64(p) | bytes;
  if ((all & 7) == 0) {
    HP_ROLLED for (u32 i = 0; i < bytes / 8; ++i) b.longs[i] = reinterpret_cast<const u64*>(p)[i];
  } else if ((all & 3) == 0) {
    HP_ROLLED for (u32 i = 0; i < bytes / 4; ++i) b.words[i] = reinterpret_cast<const u32*>(p)[i];
  } else {
    HP_ROLLED for (u32 i = 0; i < bytes; ++i) b.bytes[i] = reinterpret_cast<const u8*>(p)[i];
  }
  return b.v;
}

HP_APART void store_bytes(char* p, u32 bytes, const Vec& v) {
  Bits16 b;
  b.v = v;
  const u64 all = u64(p) | bytes;
  if ((all & 7) == 0) {
    HP_ROLLED for (u32 i = 0; i < bytes / 8; ++i) reinterpret_cast<u64*>(p)[i] = b.longs[i];
  } else if ((all & 3) == 0) {
    HP_ROLLED for (u32 i = 0; i < bytes / 4; ++i) reinterpret_cast<u32*>(p)[i] = b.words[i];
  } else {
    HP_ROLLED for (u32 i = 0; i < bytes; ++i) reinterpret_cast<u8*>(p)[i] = b.bytes[i];
  }
}

// Vector i of `n` elements (bytes of a copy) at `p`, in the wire's type.
HP_DEV Vec pack(const Vec* wide) {
  if constexpr (kWide == 1) {
    return wide[0];
  } else {
    Bits16 out, in;
    for (u32 w = 0; w < kWide; ++w) {
      in.v = wide[w];
      for (u32 e = 0; e < 16 / kElemBytes; ++e) out.wire[w * (16 / kElemBytes) + e] = Wire::encode(Elem::decode(in.elem[e]));
    }
    return out.v;
  }
}

HP_DEV Vec load_own_plain(const char* p, u64 i) {
  Vec wide[kWide];
  for (u32 w = 0; w < kWide; ++w) wide[w] = load_vector(p + (i * kWide + w) * 16);
  return pack(wide);
}

HP_APART Vec load_own_apart(const char* p, u64 i, u64 n) {
  Vec wide[kWide];
  for (u32 w = 0; w < kWide; ++w) {
    const u64 start = (i * kWide + w) * 16, end = n * kElemBytes;
    wide[w] = start < end ? load_bytes(p + start, u32(end - start < 16 ? end - start : 16)) : Vec{};
  }
  return pack(wide);
}

HP_DEV Vec load_own(const char* p, u64 i, u64 n) {
  if ((i + 1) * kPerVector <= n && is_aligned(u64(p))) return load_own_plain(p, i);
  return load_own_apart(p, i, n);
}

// Of a copy: elements and wire are the same.
HP_DEV void store_plain(char* p, u64 i, u64 n, const Vec& v) {
  if ((i + 1) * kPerVector <= n && is_aligned(u64(p)))
    store_vector(p + i * 16, v);
  else
    store_bytes(p + i * 16, u32((n - i * kPerVector) * kElemBytes < 16 ? (n - i * kPerVector) * kElemBytes : 16), v);
}

template <u32 kCount>
HP_DEV void load_tile(Vec (&v)[kCount], const char* p, u64 base, u64 n, u32 lane) {
  if ((base + kCount * kLanes) * kPerVector <= n && is_aligned(u64(p))) {
#pragma unroll
    for (u32 u = 0; u < kCount; ++u) v[u] = load_own_plain(p, base + u * kLanes + lane);
  } else {
#pragma unroll
    for (u32 u = 0; u < kCount; ++u) {
      const u64 i = base + u * kLanes + lane;
      v[u] = i * kPerVector < n ? load_own(p, i, n) : Vec{};
    }
  }
}

template <u32 kCount>
HP_DEV void store_tile(const Vec (&v)[kCount], char* p, u64 base, u64 n, u32 lane) {
  if ((base + kCount * kLanes) * kPerVector <= n && is_aligned(u64(p))) {
#pragma unroll
    for (u32 u = 0; u < kCount; ++u) store_vector(p + (base + u * kLanes + lane) * 16, v[u]);
  } else {
#pragma unroll
    for (u32 u = 0; u < kCount; ++u) {
      const u64 i = base + u * kLanes + lane;
      if (i * kPerVector < n) store_plain(p, i, n, v[u]);
    }
  }
}

// A vector of accumulators.
struct Fold {
  Acc acc[kPerVector];

  HP_MEMBER void add(const Vec& v, bool first) {
    Bits16 b;
    b.v = v;
#pragma unroll
    for (u32 e = 0; e < kPerVector; ++e) {
      Acc a = Acc(Wire::decode(b.wire[e]));
#if HP_OP == 1
      a = a * Acc(1.0 / HP_SIZE);
#endif
      acc[e] = first ? a : combine(acc[e], a);
    }
  }

  HP_MEMBER Vec wide(u32 w) const {
    Bits16 b;
#pragma unroll
    for (u32 e = 0; e < 16 / kElemBytes; ++e) b.elem[e] = Elem::encode(acc[w * (16 / kElemBytes) + e]);
    return b.v;
  }

  HP_MEMBER void store_plain(char* p, u64 i) const {
#pragma unroll
    for (u32 w = 0; w < kWide; ++w) store_vector(p + (i * kWide + w) * 16, wide(w));
  }

  HP_MEMBER void store(char* p, u64 i, u64 n) const {
    if ((i + 1) * kPerVector <= n && is_aligned(u64(p))) return store_plain(p, i);
#pragma unroll
    for (u32 w = 0; w < kWide; ++w) {
      const u64 start = (i * kWide + w) * 16, end = n * kElemBytes;
      if (start < end) store_bytes(p + start, u32(end - start < 16 ? end - start : 16), wide(w));
    }
  }
};

}  // namespace hp::HP_VARIANT
