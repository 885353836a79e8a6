// SPDX-License-Identifier: Apache-2.0
// float16, bfloat16 and the float8 types: every code, every pair of float8 codes, every rounding boundary, and many
// random float32 values, through the folds of every variant against the search in reference.cpp.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "reference.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr DType kSmallFloats[] = {DType::float16, DType::bfloat16, DType::float8_e4m3, DType::float8_e5m2};

// Codes of a small float, in memory as the kernels want them.
class Codes {
 public:
  Codes(DType dtype, std::size_t count) : size_(size_of(dtype)), data_(count * size_) {}
  std::size_t count() const { return data_.size() / size_; }
  const void* data() const { return data_.data(); }
  void* data() { return data_.data(); }
  std::uint32_t operator[](std::size_t index) const {
    std::uint32_t code = 0;
    std::memcpy(&code, &data_[index * size_], size_);
    return code;
  }
  void set(std::size_t index, std::uint32_t code) { std::memcpy(&data_[index * size_], &code, size_); }

 private:
  std::size_t size_;
  std::vector<char> data_;
};

std::uint32_t num_codes(DType dtype) { return size_of(dtype) == 1 ? 256 : 65536; }

Codes all_codes(DType dtype) {
  Codes codes(dtype, num_codes(dtype));
  for (std::uint32_t code = 0; code < num_codes(dtype); ++code) codes.set(code, code);
  return codes;
}

Codes filled(DType dtype, std::size_t count, std::uint32_t code) {
  Codes codes(dtype, count);
  for (std::size_t i = 0; i < count; ++i) codes.set(i, code);
  return codes;
}

Codes fold_two(ReduceOp op, DType dtype, Isa isa, const Codes& a, const Codes& b) {
  Codes out(dtype, a.count());
  const FoldSource sources[] = {{a.data(), false}, {b.data(), false}};
  fold_kernel(op, dtype, isa)(out.data(), sources, 2, a.count(), 1.0);
  return out;
}

void mismatch(int line, DType dtype, Isa isa, const std::string& what, std::uint32_t got, std::uint32_t wanted) {
  char text[160];
  std::snprintf(text, sizeof text, "%s %s %s: 0x%x, not 0x%x", name_of(dtype), name_of(isa), what.c_str(), got, wanted);
  fail(__FILE__, line, text);
}

// A NaN keeps sign and payload but becomes quiet; the float8 types have one quiet NaN a sign.
std::uint32_t quiet(DType dtype, std::uint32_t code) {
  if (dtype == DType::float16) return code | 0x200;
  if (dtype == DType::bfloat16) return code | 0x40;
  return code | 0x7F;
}

void test_adding_minus_zero_returns_every_code() {
  for (const DType dtype : kSmallFloats) {
    const Codes codes = all_codes(dtype);
    const Codes minus_zero = filled(dtype, codes.count(), num_codes(dtype) / 2);
    for (const Isa isa : variants()) {
      const Codes sum = fold_two(ReduceOp::sum, dtype, isa, codes, minus_zero);
      for (std::uint32_t code = 0; code < codes.count(); ++code) {
        const std::uint32_t wanted = std::isnan(decode(dtype, code)) ? quiet(dtype, code) : code;
        if (sum[code] != wanted) mismatch(__LINE__, dtype, isa, "code + -0", sum[code], wanted);
      }
    }
  }
}

void check_pairs(ReduceOp op, DType dtype, const Codes& a, const Codes& b) {
  Codes wanted(dtype, a.count());
  const FoldSource sources[] = {{a.data(), false}, {b.data(), false}};
  reference_fold(op, dtype, wanted.data(), sources, 2, a.count(), 1.0);
  for (const Isa isa : variants()) {
    const Codes got = fold_two(op, dtype, isa, a, b);
    for (std::size_t i = 0; i < a.count(); ++i) {
      if (got[i] == wanted[i] || (std::isnan(decode(dtype, got[i])) && std::isnan(decode(dtype, wanted[i])))) continue;
      const std::string operands = std::to_string(a[i]) + " and " + std::to_string(b[i]);
      mismatch(__LINE__, dtype, isa, std::string(name_of(op)) + " of " + operands, got[i], wanted[i]);
    }
  }
}

void test_every_pair_of_float8_codes() {
  for (const DType dtype : {DType::float8_e4m3, DType::float8_e5m2}) {
    Codes a(dtype, 65536);
    Codes b(dtype, 65536);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      a.set(i, i & 0xFF);
      b.set(i, i >> 8);
    }
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
      check_pairs(op, dtype, a, b);
    }
  }
}

void test_every_half_code_with_random_partners() {
  std::mt19937 random(3);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const Codes codes = all_codes(dtype);
    for (int round = 0; round < 4; ++round) {
      Codes partners(dtype, codes.count());
      for (std::uint32_t i = 0; i < codes.count(); ++i) {
        // Any code, or one near: sums of neighbours and differences that cancel are the hard cases.
        partners.set(i, round % 2 == 0 ? random() % 65536 : (i ^ 0x8000 * (random() % 2)) + random() % 2048);
      }
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min}) check_pairs(op, dtype, codes, partners);
    }
  }
}

// One times any float32, by the scale of an average of one: what leaves is the rounded float32.
void check_rounding(DType dtype, Isa isa, FoldFn average, const Codes& ones, float value) {
  Codes out(dtype, ones.count());
  const FoldSource source = {ones.data(), true};
  average(out.data(), &source, 1, ones.count(), value);
  const std::uint32_t wanted = encode(dtype, value);
  for (std::size_t i = 0; i < ones.count(); ++i) {
    if (out[i] != wanted) mismatch(__LINE__, dtype, isa, "of " + std::to_string(value), out[i], wanted);
  }
}

template <class Body>
void for_each_rounding(Body body) {
  for (const DType dtype : kSmallFloats) {
    const std::uint32_t one = encode(dtype, 1.0f);
    const Codes few = filled(dtype, 3, one);
    const Codes many = filled(dtype, 131, one);
    for (const Isa isa : variants()) {
      const FoldFn average = fold_kernel(ReduceOp::avg, dtype, isa);
      int calls = 0;
      body(dtype, [&](float value) { check_rounding(dtype, isa, average, ++calls % 16 == 0 ? many : few, value); });
    }
  }
}

void test_random_float32_round_to_the_nearest_code() {
  for_each_rounding([](DType, auto check) {
    std::mt19937 random(4);
    for (int i = 0; i < 50000; ++i) {
      const float any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (!std::isnan(any)) check(any);
      check(std::ldexp(static_cast<float>(random()) - 2147483648.0f, -31 - static_cast<int>(random() % 24)));
    }
  });
}

void test_every_boundary_between_codes_rounds_to_the_nearest_even() {
  for_each_rounding([](DType dtype, auto check) {
    for (std::uint32_t code = 0; code + 1 < num_codes(dtype) / 2; ++code) {
      const float low = decode(dtype, code);
      const float high = decode(dtype, code + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
      for (const float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, high)}) {
        check(value);
        check(-value);
      }
    }
  });
}

// The values at which a format ends, written out: no search, no formula.
void test_known_values() {
  CHECK_EQ(encode(DType::float8_e4m3, 448.0f), 0x7Eu);
  CHECK_EQ(encode(DType::float8_e4m3, 464.0f), 0x7Eu);
  CHECK_EQ(encode(DType::float8_e4m3, std::nextafter(464.0f, 500.0f)), 0x7Fu);
  CHECK_EQ(encode(DType::float8_e4m3, -INFINITY), 0xFFu);
  CHECK_EQ(encode(DType::float8_e5m2, 57344.0f), 0x7Bu);
  CHECK_EQ(encode(DType::float8_e5m2, 61440.0f), 0x7Cu);
  CHECK_EQ(encode(DType::float16, 65519.996f), 0x7BFFu);
  CHECK_EQ(encode(DType::float16, 65520.0f), 0x7C00u);
  CHECK_EQ(encode(DType::bfloat16, 3.4e38f), 0x7F80u);
  CHECK_EQ(encode(DType::bfloat16, 1e-40f), 0x0001u);
  CHECK_EQ(encode(DType::bfloat16, 1.00390625f), 0x3F80u);
  for_each_rounding([](DType, auto check) {
    for (const float value : {448.0f, 464.0f, 464.00003f, 480.0f, 57344.0f, 61440.0f, 65504.0f, 65520.0f,
                              3.4028235e38f, INFINITY, 1e-40f, 1e-45f, 0.0f, 0.0009765625f, 0.00097656256f,
                              7.6293945e-6f, 2.9802322e-8f}) {
      check(value);
      check(-value);
    }
  });
}

}  // namespace

int main() {
  return run_tests({
      {"adding minus zero returns every code", test_adding_minus_zero_returns_every_code},
      {"every pair of float8 codes", test_every_pair_of_float8_codes},
      {"every half code with random partners", test_every_half_code_with_random_partners},
      {"random float32 round to the nearest code", test_random_float32_round_to_the_nearest_code},
      {"every boundary between codes rounds to the nearest even",
       test_every_boundary_between_codes_rounds_to_the_nearest_even},
      {"known values", test_known_values},
  });
}
