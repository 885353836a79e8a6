// SPDX-License-Identifier: Apache-2.0
// Runs the block codecs of native/kernels/codecs over rows of an array, for one variant of the CPU (HCCL_PY_ISA).
// Whole blocks of float32 are read where they lie; other types, ends and errors to add pass through a block on the stack.
#pragma once

#include <cstring>

#include "hccl_py/codecs.hpp"

#define HP_HOST
#define HP_VARIANT HCCL_PY_ISA
#include "../../kernels/codecs/bf16.hpp"
#include "../../kernels/codecs/fp16.hpp"
#include "../../kernels/codecs/fp8.hpp"
#include "../../kernels/codecs/int4.hpp"
#include "../../kernels/codecs/int8.hpp"
#include "../../kernels/codecs/sign.hpp"

namespace hp::HCCL_PY_ISA {

using hccl_py::CodecRow;

struct F32Element {
  typedef float Type;
  HP_FN float widen(float v) { return v; }
  HP_FN float narrow(float v) { return v; }
};
struct F64Element {
  typedef double Type;
  HP_FN float widen(double v) { return static_cast<float>(v); }
  HP_FN double narrow(float v) { return v; }
};
struct F16Element {
  typedef u16 Type;
  HP_FN float widen(u16 v) { return Fp16::Format::decode(v); }
  HP_FN u16 narrow(float v) { return u16(Fp16::Format::encode(v)); }
};
struct BF16Element {
  typedef u16 Type;
  HP_FN float widen(u16 v) { return as<float>(u32(v) << 16); }
  HP_FN u16 narrow(float v) { return Bf16::narrow(v); }
};

constexpr u32 kMostPayload = 2 * kBlock + 4;

template <class Codec, class Element>
struct Blocks {
  typedef typename Element::Type Type;

  static void encode(const void* in, float factor, float* residual, u8* out, const CodecRow* rows, std::size_t num_rows) {
    for (const CodecRow* row = rows; row != rows + num_rows; ++row) {
      const Type* from = static_cast<const Type*>(in) + row->start;
      float* error = residual == nullptr || row->residual < 0 ? nullptr : residual + row->residual;
      u8* to = out + row->at_bytes;
      for (std::int64_t at = 0; at < row->count; at += kBlock) {
        const u32 n = static_cast<u32>(row->count - at < kBlock ? row->count - at : kBlock);
        const Draw draw = Draw::of(row->key, static_cast<u64>(row->offset + at));
        encode_block(from + at, factor, error == nullptr ? nullptr : error + at, to, n, draw);
        to += Codec::payload(n);
      }
    }
  }

  static void decode(const u8* in, void* out, const CodecRow* rows, std::size_t num_rows, bool add) {
    for (const CodecRow* row = rows; row != rows + num_rows; ++row) {
      const u8* from = in + row->at_bytes;
      for (std::int64_t at = 0; at < row->count; at += kBlock) {
        const u32 n = static_cast<u32>(row->count - at < kBlock ? row->count - at : kBlock);
        if (add) {
          add_block(from, n, static_cast<float*>(out) + row->start + at);
        } else {
          store_block(from, n, static_cast<Type*>(out) + row->start + at);
        }
        from += Codec::payload(n);
      }
    }
  }

 private:
  [[gnu::always_inline]] static inline void encode_block(const Type* in, float factor, float* error, u8* out, u32 n, const Draw& draw) {
    if constexpr (sizeof(Type) == 4) {
      if (n == kBlock && error == nullptr && factor == 1.0f) return Codec::encode(in, n, out, draw);
    }
    alignas(64) float x[kBlock];
    alignas(64) u8 code[kMostPayload];
    if (n < kBlock) std::memset(x, 0, sizeof x);
    for (u32 i = 0; i < n; ++i) x[i] = Element::widen(in[i]) * factor;
    if (error != nullptr)
      for (u32 i = 0; i < n; ++i) x[i] = x[i] + error[i];
    Codec::encode(x, n, n == kBlock ? out : code, draw);
    if (n < kBlock) std::memcpy(out, code, Codec::payload(n));
    if (error == nullptr) return;
    alignas(64) float y[kBlock];
    Codec::decode(n == kBlock ? out : code, n, y);
    for (u32 i = 0; i < n; ++i) {
      const float lost = x[i] - y[i];
      error[i] = magnitude(lost) >= kInfinityBits ? 0.0f : lost;
    }
  }

  [[gnu::always_inline]] static inline void decode_any(const u8* in, u32 n, float* y) {
    if (n == kBlock) return Codec::decode(in, n, y);
    alignas(64) u8 code[kMostPayload] = {};
    std::memcpy(code, in, Codec::payload(n));
    Codec::decode(code, n, y);
  }

  [[gnu::always_inline]] static inline void store_block(const u8* in, u32 n, Type* out) {
    if constexpr (sizeof(Type) == 4) {
      if (n == kBlock) return Codec::decode(in, n, out);
    }
    alignas(64) float y[kBlock];
    decode_any(in, n, y);
    for (u32 i = 0; i < n; ++i) out[i] = Element::narrow(y[i]);
  }

  [[gnu::always_inline]] static inline void add_block(const u8* in, u32 n, float* out) {
    alignas(64) float y[kBlock];
    decode_any(in, n, y);
    for (u32 i = 0; i < n; ++i) out[i] = out[i] + y[i];
  }
};

template <class Codec>
hccl_py::BlockCodec of_type(hccl_py::DType dtype) {
  switch (dtype) {
    case hccl_py::DType::float64:
      return {&Blocks<Codec, F64Element>::encode, &Blocks<Codec, F64Element>::decode};
    case hccl_py::DType::float32:
      return {&Blocks<Codec, F32Element>::encode, &Blocks<Codec, F32Element>::decode};
    case hccl_py::DType::float16:
      return {&Blocks<Codec, F16Element>::encode, &Blocks<Codec, F16Element>::decode};
    case hccl_py::DType::bfloat16:
      return {&Blocks<Codec, BF16Element>::encode, &Blocks<Codec, BF16Element>::decode};
    default:
      return {};
  }
}

hccl_py::BlockCodec block_codec(hccl_py::CodecId id, hccl_py::DType dtype) {
  using hccl_py::CodecId;
  switch (id) {
    case CodecId::fp16:
      return of_type<Fp16>(dtype);
    case CodecId::bf16:
      return of_type<Bf16>(dtype);
    case CodecId::fp8_e4m3:
      return of_type<Fp8E4M3>(dtype);
    case CodecId::fp8_e5m2:
      return of_type<Fp8E5M2>(dtype);
    case CodecId::int8:
      return of_type<Int8>(dtype);
    case CodecId::int4:
      return of_type<Int4>(dtype);
    case CodecId::sign:
      return of_type<Sign>(dtype);
  }
  return {};
}

}  // namespace hp::HCCL_PY_ISA
