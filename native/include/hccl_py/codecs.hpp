// SPDX-License-Identifier: Apache-2.0
// Codecs on the host: arrays to fewer bytes and back. The definition of every codec is its NumPy reference under
// compression/; these give the same bits. Callers have checked all bounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hccl_py/reduce.hpp"
#include "hccl_py/types.hpp"

namespace hccl_py {

// Numbers of the codecs, as in compression/codec.py and in frames.
enum class CodecId : std::uint8_t {
  fp16 = 1, bf16 = 2, fp8_e4m3 = 3, fp8_e5m2 = 4, int8 = 5, int4 = 6, sign = 7,
};

// A run of elements of one parameter, and where its code lies. Runs begin at a multiple of the block in the parameter.
struct CodecRow {
  std::int64_t start;     // first element, in the array
  std::int64_t count;     // elements
  std::int64_t at_bytes;  // of the code, in the payload
  std::int64_t offset;    // of the first element, in its parameter
  std::uint64_t key;      // of its random numbers
  std::int64_t residual;  // first element in the error memory, or -1
};
static_assert(sizeof(CodecRow) == 48);

// out = code of (in * factor + residual); the error memory then holds what the code lost, zero where that is not finite.
using EncodeFn = void (*)(const void* in, float factor, float* residual, std::uint8_t* out, const CodecRow* rows,
                          std::size_t num_rows);
// Stores what the codes stand for; `add`: adds it instead, to an array of float32.
using DecodeFn = void (*)(const std::uint8_t* in, void* out, const CodecRow* rows, std::size_t num_rows, bool add);

struct BlockCodec {
  EncodeFn encode;
  DecodeFn decode;
};
// Null functions where there is no such codec, element type or variant.
BlockCodec block_codec(CodecId id, DType dtype, Isa isa);

// The lossless codec: words of float32 to fewer bytes. `out` has room for `lossless_most_bytes(count)`; returns how many
// were written. Decoding stores words, or adds floats; false where the bytes are no code of `count` words (what it has
// done so far stays).
struct LosslessCodec {
  std::size_t (*encode)(const std::uint32_t* in, std::int64_t count, std::uint8_t* out);
  bool (*decode)(const std::uint8_t* in, std::size_t bytes, void* out, std::int64_t count, bool add);
};
LosslessCodec lossless_codec(Isa isa);  // null functions where there is no such variant
constexpr std::int64_t lossless_most_bytes(std::int64_t count) {
  return count / 256 * (3 + 4 * 256) + (count % 256 != 0 ? 1 + 4 * (count % 256) : 0);
}

// A run of numbers is checked by two sums over its 32-bit words (Fletcher): any one or two changed words are seen.
struct CheckSums {
  std::uint64_t plain, weighted;
};
CheckSums check_sums(const void* data, std::size_t bytes);

// Indices of the k largest magnitudes, ascending; of equal ones the first; NaN is larger than all. 0 < k <= count.
void select_top(const float* data, std::size_t count, std::size_t k, std::uint32_t* indices);
// Indices of magnitudes of at least `threshold` (and of NaN), ascending, the first `room` of them; returns how many.
std::size_t select_above(const float* data, std::size_t count, float threshold, std::uint32_t* indices, std::size_t room);
// out[index] += value, in order. False, and nothing done, if an index is not below `count`.
bool scatter_add(float* out, std::size_t count, const std::uint32_t* indices, const float* values, std::size_t n);

}  // namespace hccl_py
