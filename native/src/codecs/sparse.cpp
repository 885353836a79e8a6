// SPDX-License-Identifier: Apache-2.0
// Which elements a sparse code keeps: the largest, or all above a threshold. Reference: compression/topk.py and
// threshold.py. One histogram of the magnitudes' upper bits says where the smallest kept one lies (a radix selection,
// one digit; the rest of the digit by nth_element); a second pass takes what is in or above that digit.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "hccl_py/codecs.hpp"

namespace hccl_py {
namespace {

constexpr int kDigitShift = 20;                          // 11 of the 31 bits of a magnitude
constexpr std::size_t kDigits = std::size_t{1} << 11;
constexpr std::size_t kTables = 4;                       // so that neighbours do not wait for each other's counter

std::uint32_t magnitude(const float* data, std::size_t i) {
  std::uint32_t bits;
  std::memcpy(&bits, data + i, 4);
  return bits & 0x7FFFFFFFu;
}

using Histogram = std::array<std::uint32_t, kDigits>;

void count_digits(const float* data, std::size_t count, Histogram& histogram) {
  std::array<Histogram, kTables> tables{};
  std::size_t i = 0;
  for (; i + kTables <= count; i += kTables)
    for (std::size_t t = 0; t < kTables; ++t) ++tables[t][magnitude(data, i + t) >> kDigitShift];
  for (; i < count; ++i) ++tables[0][magnitude(data, i) >> kDigitShift];
  for (std::size_t d = 0; d < kDigits; ++d) histogram[d] = tables[0][d] + tables[1][d] + tables[2][d] + tables[3][d];
}

// `indices` has room for one more than it will get: every index is written, and kept if it counts.
std::size_t take(const float* data, std::size_t count, std::uint32_t least, std::uint32_t* indices) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < count; ++i) {
    indices[n] = static_cast<std::uint32_t>(i);
    n += magnitude(data, i) >= least ? 1 : 0;
  }
  return n;
}

}  // namespace

void select_top(const float* data, std::size_t count, std::size_t k, std::uint32_t* indices) {
  Histogram histogram;
  count_digits(data, count, histogram);
  std::size_t digit = kDigits - 1, above = 0;
  while (above + histogram[digit] < k) above += histogram[digit--];
  std::vector<std::uint32_t> found(above + histogram[digit] + 1);
  found.resize(take(data, count, static_cast<std::uint32_t>(digit) << kDigitShift, found.data()));
  std::vector<std::uint32_t> in_digit;
  in_digit.reserve(histogram[digit]);
  for (std::uint32_t i : found)
    if (magnitude(data, i) >> kDigitShift == digit) in_digit.push_back(magnitude(data, i));
  const auto last = in_digit.begin() + static_cast<std::ptrdiff_t>(k - above - 1);
  std::nth_element(in_digit.begin(), last, in_digit.end(), [](std::uint32_t a, std::uint32_t b) { return a > b; });
  const std::uint32_t least = *last;
  const auto larger = std::count_if(found.begin(), found.end(), [&](std::uint32_t i) { return magnitude(data, i) > least; });
  std::size_t equal = k - static_cast<std::size_t>(larger);
  for (std::uint32_t i : found) {
    const std::uint32_t m = magnitude(data, i);
    if (m < least || (m == least && equal == 0)) continue;
    if (m == least) --equal;
    *indices++ = i;
  }
}

std::size_t select_above(const float* data, std::size_t count, float threshold, std::uint32_t* indices, std::size_t room) {
  const std::uint32_t least = magnitude(&threshold, 0);
  std::size_t n = 0;
  for (std::size_t i = 0; i < count && n < room; ++i)
    if (magnitude(data, i) >= least) indices[n++] = static_cast<std::uint32_t>(i);
  return n;
}

bool scatter_add(float* out, std::size_t count, const std::uint32_t* indices, const float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    if (indices[i] >= count) return false;
  for (std::size_t i = 0; i < n; ++i) out[indices[i]] += values[i];
  return true;
}

CheckSums check_sums(const void* data, std::size_t bytes) {
  constexpr std::size_t kWide = 16;  // words at a time
  const char* at = static_cast<const char*>(data);
  const std::size_t words = (bytes + 3) / 4, rounds = bytes / 4 / kWide;
  std::uint64_t plain[kWide] = {}, weighted[kWide] = {};
  for (std::size_t r = 0; r < rounds; ++r) {
    std::uint32_t word[kWide];
    std::memcpy(word, at + r * sizeof word, sizeof word);
    for (std::size_t k = 0; k < kWide; ++k) {
      plain[k] += word[k];
      weighted[k] += plain[k];
    }
  }
  // Word i of all has the weight `words - i`; lane k has counted word (r, k) with the weight `rounds - r`.
  CheckSums sums{0, 0};
  for (std::size_t k = 0; k < kWide; ++k) {
    sums.plain += plain[k];
    sums.weighted += weighted[k] * kWide + plain[k] * (words - rounds * kWide) - plain[k] * k;
  }
  for (std::size_t i = rounds * kWide; i < words; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, at + 4 * i, std::min<std::size_t>(4, bytes - 4 * i));
    sums.plain += word;
    sums.weighted += static_cast<std::uint64_t>(word) * (words - i);
  }
  return sums;
}

}  // namespace hccl_py
