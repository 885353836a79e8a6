// SPDX-License-Identifier: Apache-2.0
// The codecs for Python, by addresses: hccl_py/codecs.py has checked all bounds.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings.hpp"
#include "gil.hpp"
#include "hccl_py/codecs.hpp"
#include "hccl_py/error.hpp"

namespace nb = nanobind;

namespace hccl_py {
namespace {

BlockCodec find(int codec, int dtype, const std::string& isa) {
  const BlockCodec found = block_codec(static_cast<CodecId>(codec), static_cast<DType>(dtype), isa_named(isa));
  if (found.encode == nullptr) throw ConfigError("there is no such codec for this element type");
  return found;
}

template <class T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void encode(int codec, int dtype, std::uintptr_t in, float factor, std::uintptr_t residual, std::uintptr_t out,
            std::uintptr_t rows, std::size_t num_rows, const std::string& isa) {
  const BlockCodec found = find(codec, dtype, isa);
  const WithoutGil release;
  found.encode(at<void>(in), factor, at<float>(residual), at<std::uint8_t>(out), at<CodecRow>(rows), num_rows);
}

void decode(int codec, int dtype, std::uintptr_t in, std::uintptr_t out, std::uintptr_t rows, std::size_t num_rows,
            bool add, const std::string& isa) {
  const BlockCodec found = find(codec, dtype, isa);
  if (add && static_cast<DType>(dtype) != DType::float32) throw ConfigError("sums are taken in float32");
  const WithoutGil release;
  found.decode(at<std::uint8_t>(in), at<void>(out), at<CodecRow>(rows), num_rows, add);
}

LosslessCodec find_lossless(const std::string& isa) {
  const LosslessCodec found = lossless_codec(isa_named(isa));
  if (found.encode == nullptr) throw ConfigError("there is no such codec for this instruction set");
  return found;
}

std::size_t encode_lossless(std::uintptr_t words, std::int64_t count, std::uintptr_t out, std::size_t room, const std::string& isa) {
  const LosslessCodec found = find_lossless(isa);
  if (count < 0 || room < static_cast<std::size_t>(lossless_most_bytes(count))) throw ConfigError("there is no room for the code");
  const WithoutGil release;
  return found.encode(at<std::uint32_t>(words), count, at<std::uint8_t>(out));
}

bool decode_lossless(std::uintptr_t data, std::size_t bytes, std::uintptr_t out, std::int64_t count, bool add, const std::string& isa) {
  const LosslessCodec found = find_lossless(isa);
  const WithoutGil release;
  return found.decode(at<std::uint8_t>(data), bytes, at<void>(out), count, add);
}

nb::tuple sums(std::uintptr_t data, std::size_t bytes) {
  CheckSums found;
  {
    const WithoutGil release;
    found = check_sums(at<void>(data), bytes);
  }
  return nb::make_tuple(found.plain, found.weighted);
}

void top(std::uintptr_t data, std::size_t count, std::size_t k, std::uintptr_t indices) {
  if (k == 0 || k > count) throw ConfigError("k must be 1 to the number of elements");
  const WithoutGil release;
  select_top(at<float>(data), count, k, at<std::uint32_t>(indices));
}

std::size_t above(std::uintptr_t data, std::size_t count, float threshold, std::uintptr_t indices, std::size_t room) {
  const WithoutGil release;
  return select_above(at<float>(data), count, threshold, at<std::uint32_t>(indices), room);
}

bool add_sparse(std::uintptr_t out, std::size_t count, std::uintptr_t indices, std::uintptr_t values, std::size_t n) {
  const WithoutGil release;
  return scatter_add(at<float>(out), count, at<std::uint32_t>(indices), at<float>(values), n);
}

}  // namespace

void bind_codecs(nb::module_& m) {
  m.def("codec_encode", &encode, nb::arg("codec"), nb::arg("dtype"), nb::arg("data"), nb::arg("factor"),
        nb::arg("residual"), nb::arg("out"), nb::arg("rows"), nb::arg("num_rows"), nb::arg("isa") = "",
        "Encodes rows (six 64-bit numbers each) of an array; residual: address of the error memory, or 0.");
  m.def("codec_decode", &decode, nb::arg("codec"), nb::arg("dtype"), nb::arg("data"), nb::arg("out"), nb::arg("rows"),
        nb::arg("num_rows"), nb::arg("add") = false, nb::arg("isa") = "",
        "Stores what the codes of rows stand for, or adds it to an array of float32.");
  m.def("lossless_encode", &encode_lossless, nb::arg("words"), nb::arg("count"), nb::arg("out"), nb::arg("room"), nb::arg("isa") = "",
        "Code of words of float32; returns how many bytes were written.");
  m.def("lossless_decode", &decode_lossless, nb::arg("data"), nb::arg("bytes"), nb::arg("out"), nb::arg("count"),
        nb::arg("add") = false, nb::arg("isa") = "",
        "Stores the words of a code, or adds them as float32; False if it is no code of so many.");
  m.def("check_sums", &sums, nb::arg("data"), nb::arg("bytes"), nb::sig("def check_sums(data: int, bytes: int) -> tuple[int, int]"),
        "Plain and weighted sum of the 32-bit words.");
  m.def("select_top", &top, nb::arg("data"), nb::arg("count"), nb::arg("k"), nb::arg("indices"),
        "Indices of the k largest magnitudes, ascending.");
  m.def("select_above", &above, nb::arg("data"), nb::arg("count"), nb::arg("threshold"), nb::arg("indices"), nb::arg("room"),
        "Indices of magnitudes of at least the threshold, ascending; returns how many were written.");
  m.def("scatter_add", &add_sparse, nb::arg("out"), nb::arg("count"), nb::arg("indices"), nb::arg("values"), nb::arg("n"),
        "out[index] += value, in order; False, and nothing done, if an index is out of bounds.");
}

}  // namespace hccl_py
