// SPDX-License-Identifier: Apache-2.0
// See reference.hpp.
#include "reference.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace hccl_py::testing {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  std::uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  // The first code that is no number: infinity, or NaN where there is no infinity.
  std::uint32_t overflow() const {
    return has_infinity ? ((1u << exponent_bits) - 1) << mantissa_bits : sign() - 1;
  }
  // By the definition of the format, as if there were no special codes.
  double value(std::uint32_t magnitude) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double fraction = std::ldexp(static_cast<double>(magnitude & ((1u << mantissa_bits) - 1)), -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  }
};

Format format_of(DType dtype) {
  if (dtype == DType::float16) return {5, 10, true};
  if (dtype == DType::bfloat16) return {8, 7, true};
  if (dtype == DType::float8_e4m3) return {4, 3, false};
  return {5, 2, true};
}

template <class T>
T element(const void* data, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void set_element(void* data, std::size_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
}

std::uint32_t code_at(DType dtype, const void* data, std::size_t index) {
  return size_of(dtype) == 1 ? element<std::uint8_t>(data, index) : element<std::uint16_t>(data, index);
}

// T is float or double; the sum or product of two floats is exact enough in double to be rounded once more.
template <class T>
T combined(ReduceOp op, T acc, T value) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<T>(static_cast<double>(acc) + static_cast<double>(value));
    case ReduceOp::prod:
      return static_cast<T>(static_cast<double>(acc) * static_cast<double>(value));
    case ReduceOp::min:
      return std::isnan(acc) || std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : (value < acc ? value : acc);
    case ReduceOp::max:
      return std::isnan(acc) || std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : (value > acc ? value : acc);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      break;
  }
  return std::numeric_limits<T>::quiet_NaN();
}

template <class T, class Load, class Store>
void fold_floats(ReduceOp op, const FoldSource* sources, std::size_t num_sources, std::size_t count, double scale,
                 Load load, Store store) {
  for (std::size_t i = 0; i < count; ++i) {
    T acc{};
    for (std::size_t s = 0; s < num_sources; ++s) {
      T value = load(sources[s].data, i);
      if (op == ReduceOp::avg && sources[s].raw) value = value * static_cast<T>(scale);
      acc = s == 0 ? value : combined(op, acc, value);
    }
    store(i, acc);
  }
}

template <class T>
T combined_integer(ReduceOp op, T acc, T value) {
  const std::uint64_t a = static_cast<std::uint64_t>(acc);
  const std::uint64_t b = static_cast<std::uint64_t>(value);
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<T>(a + b);
    case ReduceOp::prod:
      return static_cast<T>(a * b);
    case ReduceOp::min:
      return value < acc ? value : acc;
    case ReduceOp::max:
      return value > acc ? value : acc;
    case ReduceOp::band:
      return static_cast<T>(a & b);
    case ReduceOp::bor:
      return static_cast<T>(a | b);
    case ReduceOp::bxor:
      return static_cast<T>(a ^ b);
  }
  return acc;
}

template <class T>
void fold_integers(ReduceOp op, void* out, const FoldSource* sources, std::size_t num_sources, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T acc = element<T>(sources[0].data, i);
    for (std::size_t s = 1; s < num_sources; ++s) acc = combined_integer(op, acc, element<T>(sources[s].data, i));
    set_element(out, i, acc);
  }
}

void fold_bools(ReduceOp op, void* out, const FoldSource* sources, std::size_t num_sources, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    bool acc = element<std::uint8_t>(sources[0].data, i) != 0;
    for (std::size_t s = 1; s < num_sources; ++s) {
      const bool value = element<std::uint8_t>(sources[s].data, i) != 0;
      if (op == ReduceOp::bxor) {
        acc = acc != value;
      } else if (op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor) {
        acc = acc || value;
      } else {
        acc = acc && value;
      }
    }
    set_element(out, i, static_cast<std::uint8_t>(acc ? 1 : 0));
  }
}

}  // namespace

std::vector<Isa> variants() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (isa <= best_isa()) isas.push_back(isa);
  }
  return isas;
}

bool is_float(DType dtype) { return dtype <= DType::float8_e5m2; }

bool is_small_float(DType dtype) { return is_float(dtype) && size_of(dtype) <= 2; }

float decode(DType dtype, std::uint32_t code) {
  const Format format = format_of(dtype);
  const std::uint32_t magnitude = code & (format.sign() - 1);
  const float sign = (code & format.sign()) != 0 ? -1.0f : 1.0f;
  if (magnitude == format.overflow() && format.has_infinity) return sign * std::numeric_limits<float>::infinity();
  if (magnitude >= format.overflow()) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  return sign * static_cast<float>(format.value(magnitude));
}

std::uint32_t encode(DType dtype, float value) {
  const Format format = format_of(dtype);
  const std::uint32_t sign = std::signbit(value) ? format.sign() : 0;
  if (std::isnan(value)) return sign | (dtype == DType::float16 ? 0x7E00u : dtype == DType::bfloat16 ? 0x7FC0u : 0x7Fu);
  const double wanted = std::fabs(static_cast<double>(value));
  // Codes grow with their values: the last one not above.
  std::uint32_t low = 0;
  std::uint32_t high = format.overflow();
  if (wanted >= format.value(high)) return sign | high;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (format.value(middle) <= wanted ? low : high) = middle;
  }
  const double below = wanted - format.value(low);
  const double above = format.value(high) - wanted;
  const bool down = below < above || (below == above && low % 2 == 0);
  return sign | (down ? low : high);
}

bool is_nan(DType dtype, const void* data) {
  if (dtype == DType::float64) return std::isnan(element<double>(data, 0));
  if (dtype == DType::float32) return std::isnan(element<float>(data, 0));
  return is_small_float(dtype) && std::isnan(decode(dtype, code_at(dtype, data, 0)));
}

void reference_fold(ReduceOp op, DType dtype, void* out, const FoldSource* sources, std::size_t num_sources,
                    std::size_t count, double scale) {
  switch (dtype) {
    case DType::float64:
      return fold_floats<double>(op, sources, num_sources, count, scale, element<double>,
                                 [&](std::size_t i, double value) { set_element(out, i, value); });
    case DType::float32:
      return fold_floats<float>(op, sources, num_sources, count, scale, element<float>,
                                [&](std::size_t i, float value) { set_element(out, i, value); });
    case DType::float16:
    case DType::bfloat16:
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      return fold_floats<float>(
          op, sources, num_sources, count, scale,
          [&](const void* data, std::size_t i) { return decode(dtype, code_at(dtype, data, i)); },
          [&](std::size_t i, float value) {
            const std::uint32_t code = encode(dtype, value);
            if (size_of(dtype) == 1) set_element(out, i, static_cast<std::uint8_t>(code));
            if (size_of(dtype) == 2) set_element(out, i, static_cast<std::uint16_t>(code));
          });
    case DType::int8:
      return fold_integers<std::int8_t>(op, out, sources, num_sources, count);
    case DType::int16:
      return fold_integers<std::int16_t>(op, out, sources, num_sources, count);
    case DType::int32:
      return fold_integers<std::int32_t>(op, out, sources, num_sources, count);
    case DType::int64:
      return fold_integers<std::int64_t>(op, out, sources, num_sources, count);
    case DType::uint8:
      return fold_integers<std::uint8_t>(op, out, sources, num_sources, count);
    case DType::uint16:
      return fold_integers<std::uint16_t>(op, out, sources, num_sources, count);
    case DType::uint32:
      return fold_integers<std::uint32_t>(op, out, sources, num_sources, count);
    case DType::uint64:
      return fold_integers<std::uint64_t>(op, out, sources, num_sources, count);
    case DType::bool_:
      return fold_bools(op, out, sources, num_sources, count);
  }
}

}  // namespace hccl_py::testing
