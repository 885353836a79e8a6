// SPDX-License-Identifier: Apache-2.0
// Codecs touch no byte beyond their arrays, whatever the count, and all variants give the same bits. What the bits
// should be is tested against the NumPy reference (tests/unit/compression/). Worth building with HCCL_PY_SANITIZE=address.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "hccl_py/codecs.hpp"

namespace hccl_py {
namespace {

constexpr std::int64_t kBlock = 256;

std::int64_t payload(CodecId id, std::int64_t n) {
  switch (id) {
    case CodecId::fp16:
    case CodecId::bf16: return 2 * n;
    case CodecId::fp8_e4m3:
    case CodecId::fp8_e5m2: return 1 + n;
    case CodecId::int8: return 4 + n;
    case CodecId::int4: return 4 + (n + 1) / 2;
    case CodecId::sign: return 4 + (n + 7) / 8;
  }
  return 0;
}

std::int64_t code_bytes(CodecId id, std::int64_t count) {
  const std::int64_t rest = count % kBlock;
  return count / kBlock * payload(id, kBlock) + (rest != 0 ? payload(id, rest) : 0);
}

std::vector<std::byte> elements(DType dtype, std::int64_t count, std::mt19937& random) {
  std::vector<std::byte> out(static_cast<std::size_t>(count) * size_of(dtype));
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < count; ++i) {
    float value = normal(random);
    if (i % 97 == 13) value = std::numeric_limits<float>::quiet_NaN();
    if (i % 89 == 31) value = std::numeric_limits<float>::infinity();
    if (i % 7 == 3) value = 0;
    if (i % 61 == 5) value = 1e-41F;
    const double wide = value;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
    std::byte* to = out.data() + static_cast<std::size_t>(i) * size_of(dtype);
    if (dtype == DType::float64) std::memcpy(to, &wide, sizeof wide);
    if (dtype == DType::float32) std::memcpy(to, &value, sizeof value);
    if (size_of(dtype) == 2) std::memcpy(to, &half, sizeof half);  // any bits will do for float16
  }
  return out;
}

struct Result {
  std::vector<std::uint8_t> code;
  std::vector<float> residual;
  std::vector<std::byte> decoded;
  std::vector<float> sum;
  bool operator==(const Result& other) const {  // bits: there are NaN
    return code == other.code && decoded == other.decoded && same(residual, other.residual) && same(sum, other.sum);
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }
};

// Every vector has exactly the size that is needed: a sanitizer sees what goes beyond.
Result there_and_back(CodecId id, DType dtype, Isa isa, std::int64_t count, const std::vector<std::byte>& in) {
  const BlockCodec codec = block_codec(id, dtype, isa);
  CHECK(codec.encode != nullptr && codec.decode != nullptr);
  const CodecRow row{0, count, 0, 512, 0x9e3779b97f4a7c15, 0};
  Result r;
  r.code.resize(static_cast<std::size_t>(code_bytes(id, count)));
  r.residual.assign(static_cast<std::size_t>(count), 0.25F);
  r.decoded.resize(in.size());
  codec.encode(in.data(), 0.5F, r.residual.data(), r.code.data(), &row, 1);
  codec.decode(r.code.data(), r.decoded.data(), &row, 1, false);
  if (dtype == DType::float32) {
    r.sum.assign(static_cast<std::size_t>(count), 1.0F);
    codec.decode(r.code.data(), r.sum.data(), &row, 1, true);
  }
  return r;
}

void test_codecs_stay_in_their_arrays_and_variants_agree() {
  std::mt19937 random(7);
  for (int id = 1; id <= 7; ++id)
    for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16})
      for (std::int64_t count : {0, 1, 2, 7, 8, 15, 31, 33, 255, 256, 257, 300, 511, 513, 1000}) {
        const auto codec = static_cast<CodecId>(id);
        const std::vector<std::byte> in = elements(dtype, count, random);
        const Result portable = there_and_back(codec, dtype, Isa::portable, count, in);
        for (Isa isa : {Isa::avx2, Isa::avx512})
          if (isa <= best_isa() && !(there_and_back(codec, dtype, isa, count, in) == portable))
            testing::fail(__FILE__, __LINE__, "codec " + std::to_string(id) + ", " + name_of(dtype) + ", " + name_of(isa) +
                                                  ", " + std::to_string(count) + " elements: other bits");
      }
}

// Two runs with a gap between them, in the array as in the code: what lies between is left alone.
void test_rows_are_independent() {
  std::mt19937 random(8);
  const std::vector<std::byte> in = elements(DType::float32, 1000, random);
  const CodecRow rows[] = {{10, 300, 5, 0, 1, 0}, {600, 77, 1000, 256, 2, 400}};
  std::vector<std::uint8_t> code(1000 + 4 + 77, 0xEE);
  std::vector<float> residual(400 + 77, 0.0F), out(1000, -3.0F);
  const BlockCodec codec = block_codec(CodecId::int8, DType::float32, best_isa());
  codec.encode(in.data(), 1.0F, residual.data(), code.data(), rows, 2);
  codec.decode(code.data(), out.data(), rows, 2, false);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool inside = (i >= 10 && i < 310) || (i >= 600 && i < 677);
    if (!inside) CHECK_EQ(out[i], -3.0F);
  }
  CHECK_EQ(int{code[4]}, 0xEE);
  CHECK_EQ(int{code[5 + 4 + 256 + 4 + 44]}, 0xEE);
  CHECK_EQ(int{code[999]}, 0xEE);
  CHECK_EQ(residual[350], 0.0F);
}

// Every vector has exactly the size that is needed here, too.
void test_lossless_codes_come_back_and_what_is_cut_off_is_refused() {
  std::mt19937 random(10);
  for (std::size_t count : {0, 1, 2, 255, 256, 257, 511, 512, 1000})
    for (std::uint32_t keep : {0xFFFFFFFFu, 0x83FFFFFFu, 0xFFFF0000u, 0x7F800000u, 0u}) {
      std::vector<std::uint32_t> words(count);
      for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random()) & keep;
      std::vector<std::uint8_t> first;
      for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa > best_isa()) continue;
        const LosslessCodec codec = lossless_codec(isa);
        const auto n = static_cast<std::int64_t>(count);
        std::vector<std::uint8_t> room(static_cast<std::size_t>(lossless_most_bytes(n)));
        const std::size_t bytes = codec.encode(words.data(), n, room.data());
        CHECK(bytes <= room.size());
        const std::vector<std::uint8_t> code(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(bytes));
        if (isa == Isa::portable) first = code;
        CHECK(code == first);
        std::vector<std::uint32_t> out(count);
        CHECK(codec.decode(code.data(), bytes, out.data(), n, false) && out == words);
        for (std::size_t less = 1; less <= bytes; less += 1 + bytes / 50) {
          const std::vector<std::uint8_t> cut(code.begin(), code.end() - static_cast<std::ptrdiff_t>(less));
          CHECK(!codec.decode(cut.data(), cut.size(), out.data(), n, false));
        }
      }
    }
}

void test_there_is_no_codec_for_integers() {
  CHECK(block_codec(CodecId::int8, DType::int32, Isa::portable).encode == nullptr);
  CHECK(block_codec(static_cast<CodecId>(99), DType::float32, Isa::portable).encode == nullptr);
}

void test_selection() {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (std::size_t count : {1, 2, 63, 64, 65, 1000, 5000}) {
    std::vector<float> data(count);
    for (float& value : data) value = normal(random);
    if (count > 10) data[5] = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t k : {std::size_t{1}, (count + 1) / 2, count}) {
      std::vector<std::uint32_t> indices(k);
      select_top(data.data(), count, k, indices.data());
      float least = std::numeric_limits<float>::infinity();
      std::vector<bool> in(count);
      for (std::size_t i = 0; i < k; ++i) {
        CHECK(indices[i] < count && (i == 0 || indices[i - 1] < indices[i]));
        in[indices[i]] = true;
        if (!std::isnan(data[indices[i]])) least = std::min(least, std::abs(data[indices[i]]));
      }
      for (std::size_t i = 0; i < count; ++i)
        if (!in[i]) CHECK(std::abs(data[i]) <= least);
      std::vector<float> sums(count, 0.0F);
      std::vector<float> values(k, 2.0F);
      CHECK(scatter_add(sums.data(), count, indices.data(), values.data(), k));
      CHECK_EQ(sums[indices[k - 1]], 2.0F);
      indices[0] = static_cast<std::uint32_t>(count);
      CHECK(!scatter_add(sums.data(), count, indices.data(), values.data(), k));
      CHECK_EQ(sums[indices[k - 1] == count ? 0 : indices[k - 1]] <= 2.0F, true);
    }
    std::vector<std::uint32_t> room(3);
    CHECK(select_above(data.data(), count, 0.1F, room.data(), room.size()) <= room.size());
  }
}

void test_check_sums_see_a_changed_byte_at_every_length() {
  for (std::size_t bytes = 1; bytes <= 70; ++bytes) {
    std::vector<std::uint8_t> data(bytes, 3);
    const CheckSums before = check_sums(data.data(), bytes);
    data[bytes - 1] ^= 1;
    const CheckSums after = check_sums(data.data(), bytes);
    CHECK(before.plain != after.plain && before.weighted != after.weighted);
  }
}

}  // namespace
}  // namespace hccl_py

int main() {
  using namespace hccl_py;
  return testing::run_tests({
      {"codecs stay in their arrays, and variants agree", test_codecs_stay_in_their_arrays_and_variants_agree},
      {"rows are independent", test_rows_are_independent},
      {"lossless codes come back, and what is cut off is refused", test_lossless_codes_come_back_and_what_is_cut_off_is_refused},
      {"there is no codec for integers", test_there_is_no_codec_for_integers},
      {"selection", test_selection},
      {"check sums see a changed byte at every length", test_check_sums_see_a_changed_byte_at_every_length},
  });
}
