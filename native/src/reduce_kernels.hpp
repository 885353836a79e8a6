// SPDX-License-Identifier: Apache-2.0
// The n-way fold, and the table of folds for every element type and operator, of one variant.
// One pass: a block of accumulators stays in registers while all sources are folded into it.
#pragma once

#include "hccl_py/reduce.hpp"
#include "reduce_elements.hpp"
#include "reduce_ops.hpp"
#if defined(HCCL_PY_WITH_AVX512) || defined(HCCL_PY_WITH_AVX2)
#include "reduce_elements_f16c.hpp"
#else
#include "reduce_elements_bits.hpp"
#endif

namespace hccl_py::HCCL_PY_ISA {

// kSources = 0: as many as `num_sources` says. `bytes` are those of one operand.
template <class Op, class Element, std::size_t kSources>
class Fold {
 public:
  using Acc = typename Element::Acc;
  using Lane = typename Acc::Lane;

  static void run(char* out, const FoldSource* sources, std::size_t num_sources, std::size_t bytes, Lane scale) {
    // Four vectors at once, or what leaves registers for the wide accumulators.
    constexpr std::size_t kBlock = Acc::kNumParts == 4 ? 1 : 4 / Acc::kNumParts;
    const std::size_t n = kSources != 0 ? kSources : num_sources;
    std::size_t at = 0;
    for (; at + kBlock * kVectorBytes <= bytes; at += kBlock * kVectorBytes) {
      block<kBlock>(out + at, sources, n, at, scale);
    }
    for (; at + kVectorBytes <= bytes; at += kVectorBytes) block<1>(out + at, sources, n, at, scale);
    if (at < bytes) tail(out + at, sources, n, at, bytes - at, scale);
  }

 private:
  template <std::size_t kVectors>
  HCCL_PY_INLINE static void block(char* out, const FoldSource* sources, std::size_t n, std::size_t at, Lane scale) {
    Acc acc[kVectors];
    const char* in = data(sources[0]) + at;
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) acc[v] = read(in + v * kVectorBytes, sources[0].raw, scale);
    for (std::size_t s = 1; s < n; ++s) {
      in = data(sources[s]) + at;
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) {
        combine(acc[v], read(in + v * kVectorBytes, sources[s].raw, scale));
      }
    }
    // After the last load: `out` may be one of the sources.
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) Element::encode(out + v * kVectorBytes, acc[v]);
  }

  // The same vector code on copies, so that the bits do not depend on where an element lies.
  HCCL_PY_INLINE static void tail(char* out, const FoldSource* sources, std::size_t n, std::size_t at,
                                  std::size_t bytes, Lane scale) {
    Tail copy;
    load_tail(copy, data(sources[0]) + at, bytes);
    Acc acc = read(copy.data, sources[0].raw, scale);
    for (std::size_t s = 1; s < n; ++s) {
      load_tail(copy, data(sources[s]) + at, bytes);
      combine(acc, read(copy.data, sources[s].raw, scale));
    }
    Element::encode(copy.data, acc);
    store_tail(out, copy, bytes);
  }

  HCCL_PY_INLINE static const char* data(const FoldSource& source) { return static_cast<const char*>(source.data); }

  HCCL_PY_INLINE static Acc read(const char* in, bool raw, Lane scale) {
    Acc acc = Element::decode(in);
    if constexpr (Op::kScales) {
      const Lane factor = raw ? scale : Lane{1};
#pragma GCC unroll 4
      for (int k = 0; k < Acc::kNumParts; ++k) acc.part[k] = acc.part[k] * factor;
    }
    return acc;
  }

  HCCL_PY_INLINE static void combine(Acc& acc, const Acc& value) {
#pragma GCC unroll 4
    for (int k = 0; k < Acc::kNumParts; ++k) acc.part[k] = Op::apply(acc.part[k], value.part[k]);
  }
};

template <class Op, class Element>
void fold(void* out, const FoldSource* sources, std::size_t num_sources, std::size_t count, double scale) {
  using Lane = typename Element::Acc::Lane;
  const std::size_t bytes = count * Element::kSize;
  const Lane factor = static_cast<Lane>(scale);
  char* to = static_cast<char*>(out);
  if (num_sources == 1 && Element::kKeepsBits && !(Op::kScales && sources[0].raw)) {
    copy_bytes(out, sources[0].data, bytes);
  } else if (num_sources == 2) {
    Fold<Op, Element, 2>::run(to, sources, 2, bytes, factor);
  } else {
    Fold<Op, Element, 0>::run(to, sources, num_sources, bytes, factor);
  }
}

template <class Op, class Element>
constexpr FoldFn float_fold() {
  if constexpr (Op::kFloats) return fold<Op, Element>;
  return nullptr;
}

template <class Op, class Signed, class Unsigned>
constexpr FoldFn integer_fold() {
  if constexpr (!Op::kIntegers) {
    return nullptr;
  } else if constexpr (Op::kOrders) {
    return fold<Op, Plain<Signed>>;
  } else {
    return fold<Op, Plain<Unsigned>>;  // wraps without undefined behaviour
  }
}

template <class Op>
constexpr FoldFn bool_fold() {
  if constexpr (Op::kIntegers) return fold<typename Op::OnBool, Bool>;
  return nullptr;
}

template <class Op>
FoldFn kernel_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return float_fold<Op, Plain<double>>();
    case DType::float32:
      return float_fold<Op, Plain<float>>();
    case DType::float16:
      return float_fold<Op, Float16>();
    case DType::bfloat16:
      return float_fold<Op, BFloat16>();
    case DType::float8_e4m3:
      return float_fold<Op, Float8E4M3>();
    case DType::float8_e5m2:
      return float_fold<Op, Float8E5M2>();
    case DType::int8:
      return integer_fold<Op, std::int8_t, std::uint8_t>();
    case DType::int16:
      return integer_fold<Op, std::int16_t, std::uint16_t>();
    case DType::int32:
      return integer_fold<Op, std::int32_t, std::uint32_t>();
    case DType::int64:
      return integer_fold<Op, std::int64_t, std::uint64_t>();
    case DType::uint8:
      return integer_fold<Op, std::uint8_t, std::uint8_t>();
    case DType::uint16:
      return integer_fold<Op, std::uint16_t, std::uint16_t>();
    case DType::uint32:
      return integer_fold<Op, std::uint32_t, std::uint32_t>();
    case DType::uint64:
      return integer_fold<Op, std::uint64_t, std::uint64_t>();
    case DType::bool_:
      return bool_fold<Op>();
  }
  return nullptr;
}

FoldFn kernel(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::sum:
      return kernel_of<Sum>(dtype);
    case ReduceOp::avg:
      return kernel_of<Avg>(dtype);
    case ReduceOp::prod:
      return kernel_of<Prod>(dtype);
    case ReduceOp::min:
      return kernel_of<Min>(dtype);
    case ReduceOp::max:
      return kernel_of<Max>(dtype);
    case ReduceOp::band:
      return kernel_of<BitAnd>(dtype);
    case ReduceOp::bor:
      return kernel_of<BitOr>(dtype);
    case ReduceOp::bxor:
      return kernel_of<BitXor>(dtype);
  }
  return nullptr;
}

}  // namespace hccl_py::HCCL_PY_ISA
