// SPDX-License-Identifier: Apache-2.0
// Every fold of every variant against the reference: element types x operators x numbers of sources x counts x
// where `out` lies x which sources are raw. All variants must agree to the last bit, NaNs included.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "reference.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::testing;

constexpr std::size_t kGuardBytes = 64;
constexpr char kGuard = 0x5A;
constexpr double kScale = 1.0 / 3;

// Elements at an odd address between guards, so that neither alignment nor a byte beyond the end goes unnoticed.
class Elements {
 public:
  explicit Elements(std::size_t bytes) : storage_(kGuardBytes + bytes + kGuardBytes, kGuard), bytes_(bytes) {}
  char* data() { return storage_.data() + kGuardBytes - 3; }
  std::size_t bytes() const { return bytes_; }
  std::string contents() { return std::string(data(), bytes_); }
  bool guards_are_whole() {
    for (char* at = storage_.data(); at != storage_.data() + storage_.size(); ++at) {
      if ((at < data() || at >= data() + bytes_) && *at != kGuard) return false;
    }
    return true;
  }

 private:
  std::vector<char> storage_;
  std::size_t bytes_;
};

template <class T>
void put(char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Three of four elements are small numbers, the others any bits: NaN, infinities and denormals among them.
void fill(Elements& elements, DType dtype, std::mt19937_64& random) {
  const std::size_t size = size_of(dtype);
  for (std::size_t at = 0; at < elements.bytes(); at += size) {
    const std::uint64_t bits = random();
    char* to = elements.data() + at;
    std::memcpy(to, &bits, size);
    if (!is_float(dtype) || bits >> 62 == 0) continue;
    const float number = static_cast<float>(static_cast<std::int64_t>(random() % 2001) - 1000) / 128.0f;
    if (dtype == DType::float64) {
      put(to, static_cast<double>(number));
    } else if (dtype == DType::float32) {
      put(to, number);
    } else if (size == 2) {
      put(to, static_cast<std::uint16_t>(encode(dtype, number)));
    } else {
      put(to, static_cast<std::uint8_t>(encode(dtype, number)));
    }
  }
}

std::string where(ReduceOp op, DType dtype, std::size_t num_sources, std::size_t count, std::size_t index) {
  return std::string(name_of(op)) + " " + name_of(dtype) + " of " + std::to_string(num_sources) + " sources of " +
         std::to_string(count) + ", element " + std::to_string(index);
}

// Equal, or both NaN.
void check_against_reference(const std::string& got, const std::string& wanted, ReduceOp op, DType dtype,
                             std::size_t num_sources) {
  const std::size_t size = size_of(dtype);
  CHECK_EQ(got.size(), wanted.size());
  for (std::size_t at = 0; at < got.size(); at += size) {
    if (std::memcmp(&got[at], &wanted[at], size) == 0) continue;
    if (is_nan(dtype, &got[at]) && is_nan(dtype, &wanted[at])) continue;
    fail(__FILE__, __LINE__, where(op, dtype, num_sources, got.size() / size, at / size) + " is wrong");
  }
}

struct Case {
  ReduceOp op;
  DType dtype;
  std::size_t num_sources;
  std::size_t count;
  int raw;  // 0 none, 1 all, 2 every second
};

// `alias` is the source that is also the target, or num_sources for none. The result's bytes.
std::string run_fold(Isa isa, const Case& c, std::vector<Elements> sources, std::size_t alias) {
  const std::size_t bytes = c.count * size_of(c.dtype);
  Elements separate(bytes);
  std::vector<FoldSource> folded;
  std::vector<std::string> before;
  for (std::size_t s = 0; s < c.num_sources; ++s) {
    folded.push_back({sources[s].data(), c.raw == 1 || (c.raw == 2 && s % 2 == 0)});
    before.push_back(sources[s].contents());
  }
  Elements& out = alias < c.num_sources ? sources[alias] : separate;
  fold_kernel(c.op, c.dtype, isa)(out.data(), folded.data(), c.num_sources, c.count, kScale);
  CHECK(separate.guards_are_whole());
  for (std::size_t s = 0; s < c.num_sources; ++s) {
    CHECK(sources[s].guards_are_whole());
    CHECK(s == alias || sources[s].contents() == before[s]);
  }
  return out.contents();
}

void check_case(const Case& c, std::mt19937_64& random) {
  const std::size_t bytes = c.count * size_of(c.dtype);
  std::vector<Elements> sources(c.num_sources, Elements(bytes));
  std::vector<FoldSource> folded;
  for (std::size_t s = 0; s < c.num_sources; ++s) {
    fill(sources[s], c.dtype, random);
    folded.push_back({sources[s].data(), c.raw == 1 || (c.raw == 2 && s % 2 == 0)});
  }
  Elements wanted(bytes);
  reference_fold(c.op, c.dtype, wanted.data(), folded.data(), c.num_sources, c.count, kScale);

  std::string first;
  for (const Isa isa : variants()) {
    for (const std::size_t alias : {c.num_sources, std::size_t{0}, c.num_sources / 2, c.num_sources - 1}) {
      const std::string got = run_fold(isa, c, sources, alias);
      check_against_reference(got, wanted.contents(), c.op, c.dtype, c.num_sources);
      if (isa == Isa::portable && alias == c.num_sources) first = got;
      if (got != first) {
        fail(__FILE__, __LINE__,
             where(c.op, c.dtype, c.num_sources, c.count, 0) + ": " + name_of(isa) + ", out = source " +
                 std::to_string(alias) + ", differs from portable");
      }
    }
  }
}

void test_every_fold_equals_the_reference_in_every_variant() {
  std::mt19937_64 random(1);
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const ReduceOp op = static_cast<ReduceOp>(o);
      const DType dtype = static_cast<DType>(d);
      if (!allowed(op, dtype)) continue;
      for (const std::size_t num_sources : {1, 2, 3, 4, 5, 9}) {
        for (const std::size_t count : {0, 1, 7, 16, 63, 1000}) {
          for (int raw = 0; raw < (op == ReduceOp::avg ? 3 : 1); ++raw) {
            check_case({op, dtype, num_sources, count, raw}, random);
          }
        }
      }
    }
  }
}

// All counts around the sizes of vectors and blocks: where the main loop ends and the tail begins.
void test_every_short_count_is_right() {
  std::mt19937_64 random(2);
  for (int d = 0; d < kNumDTypes; ++d) {
    for (const std::size_t num_sources : {2, 3}) {
      for (std::size_t count = 0; count <= 600 / size_of(static_cast<DType>(d)); ++count) {
        check_case({ReduceOp::sum, static_cast<DType>(d), num_sources, count, 0}, random);
      }
    }
  }
}

void test_kernels_exist_exactly_where_allowed() {
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const ReduceOp op = static_cast<ReduceOp>(o);
      const DType dtype = static_cast<DType>(d);
      for (const Isa isa : variants()) CHECK_EQ(fold_kernel(op, dtype, isa) != nullptr, allowed(op, dtype));
    }
  }
}

void test_the_check_against_the_reference_rejects_one_wrong_bit() {
  const std::string good("\0\0\x80\x3f\0\0\0\x40", 8);
  std::string bad = good;
  bad[4] ^= 1;
  check_against_reference(good, good, ReduceOp::sum, DType::float32, 2);
  bool rejected = false;
  try {
    check_against_reference(bad, good, ReduceOp::sum, DType::float32, 2);
  } catch (const Failure& failure) {
    rejected = failure.text.find("element 1") != std::string::npos;
  }
  CHECK(rejected);
}

void test_min_and_max_propagate_nan_from_every_source() {
  constexpr std::size_t kCount = 100;
  const float nan = decode(DType::float16, 0x7E00);
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (const Isa isa : variants()) {
      for (std::size_t with_nan = 0; with_nan < 4; ++with_nan) {
        std::vector<std::vector<float>> data(4, std::vector<float>(kCount, 1.0f));
        data[with_nan].assign(kCount, nan);
        std::vector<FoldSource> sources;
        for (const std::vector<float>& source : data) sources.push_back({source.data(), false});
        std::vector<float> out(kCount);
        fold_kernel(op, DType::float32, isa)(out.data(), sources.data(), 4, kCount, 1.0);
        for (const float value : out) CHECK(value != value);
      }
    }
  }
}

void test_integers_wrap() {
  const std::vector<std::int32_t> a(50, 0x7FFFFFFF);
  const std::vector<std::int32_t> b(50, 2);
  const FoldSource sources[] = {{a.data(), true}, {b.data(), true}};
  std::vector<std::int32_t> out(50);
  for (const Isa isa : variants()) {
    fold_kernel(ReduceOp::sum, DType::int32, isa)(out.data(), sources, 2, 50, 1.0);
    for (const std::int32_t value : out) CHECK_EQ(value, -0x7FFFFFFF);
    fold_kernel(ReduceOp::prod, DType::int32, isa)(out.data(), sources, 2, 50, 1.0);
    for (const std::int32_t value : out) CHECK_EQ(value, -2);
  }
}

void test_copy_bytes_copies_every_size() {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4097},
                                  (std::size_t{16} << 20) + 5, (std::size_t{17} << 20) - 64}) {
    Elements in(bytes);
    Elements out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) in.data()[i] = static_cast<char>(i * 31 + i / 251);
    const std::string wanted = in.contents();
    copy_bytes(out.data(), in.data(), bytes);
    CHECK(out.contents() == wanted);
    CHECK(out.guards_are_whole());
    CHECK(in.contents() == wanted);
    copy_bytes(in.data(), in.data(), bytes);
    CHECK(in.contents() == wanted);
  }
}

void test_names_and_sizes() {
  CHECK_EQ(std::string(name_of(DType::bool_)), std::string("bool"));
  CHECK_EQ(std::string(name_of(DType::float8_e4m3)), std::string("float8_e4m3"));
  CHECK_EQ(std::string(name_of(ReduceOp::bxor)), std::string("bxor"));
  CHECK_EQ(std::string(name_of(Collective::reduce_scatter)), std::string("reduce_scatter"));
  CHECK_EQ(std::string(name_of(Isa::avx2)), std::string("avx2"));
  CHECK_EQ(size_of(DType::bfloat16), 2u);
  CHECK_EQ(size_of(DType::uint64), 8u);
  CHECK(allowed(ReduceOp::avg, DType::float8_e5m2) && !allowed(ReduceOp::avg, DType::int8));
  CHECK(allowed(ReduceOp::bxor, DType::bool_) && !allowed(ReduceOp::band, DType::float8_e5m2));
  CHECK(reduces(Collective::reduce) && !reduces(Collective::all_to_all));
}

}  // namespace

int main() {
  return run_tests({
      {"every fold equals the reference in every variant", test_every_fold_equals_the_reference_in_every_variant},
      {"every short count is right", test_every_short_count_is_right},
      {"kernels exist exactly where allowed", test_kernels_exist_exactly_where_allowed},
      {"the check against the reference rejects one wrong bit",
       test_the_check_against_the_reference_rejects_one_wrong_bit},
      {"min and max propagate NaN from every source", test_min_and_max_propagate_nan_from_every_source},
      {"integers wrap", test_integers_wrap},
      {"copy_bytes copies every size", test_copy_bytes_copies_every_size},
      {"names and sizes", test_names_and_sizes},
  });
}
