// SPDX-License-Identifier: Apache-2.0
// Wire format v1: the bytes are as documented, what is decoded is what was encoded, and every fault is found.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "check.hpp"
#include "hccl_py/wire.hpp"

namespace {

using namespace hccl_py;

template <std::size_t n>
using Bytes = std::array<std::byte, n>;

template <std::size_t n, typename Message>
Bytes<n> encoded(const Message& message) {
  Bytes<n> bytes;
  bytes.fill(std::byte{0xee});  // whatever is not written would show
  encode(message, std::span<std::byte, n>(bytes));
  return bytes;
}

template <std::size_t n>
std::span<const std::byte, n> view(const Bytes<n>& bytes) {
  return std::span<const std::byte, n>(bytes);
}

template <std::size_t n>
Bytes<n> with(Bytes<n> bytes, std::size_t at, int value) {
  bytes[at] = static_cast<std::byte>(value);
  return bytes;
}

template <std::size_t n>
std::array<std::uint8_t, n> counting(int first) {
  std::array<std::uint8_t, n> bytes;
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(first + static_cast<int>(i));
  return bytes;
}

FrameHeader some_header() {
  FrameHeader header;
  header.kind = FrameKind::p2p_cts;
  header.flags = kFrameHasFingerprint | kFrameHasCrc;
  header.epoch = 0x0b0a0908;
  header.communicator = 0x0f0e0d0c;
  header.sequence_or_tag = 0x1716151413121110;
  header.plan_digest = 0x1f1e1d1c1b1a1918;
  header.channel = 0x2120;
  header.codec = 0x2322;
  header.step = 0x27262524;
  header.offset = 0x2f2e2d2c2b2a2928;
  header.length = 0x3736353433323130;
  header.crc32c = 0x3b3a3938;
  return header;
}

void test_frame_header_has_the_documented_bytes() {
  const auto bytes = encoded<kFrameHeaderBytes>(some_header());
  // Every field was chosen such that byte i holds i, apart from the first eight and the reserved last four.
  CHECK(std::memcmp(bytes.data(), "HPFM\x01\x04\x03\x00", 8) == 0);
  for (std::size_t i = 8; i < 60; ++i) CHECK(bytes[i] == static_cast<std::byte>(i));
  for (std::size_t i = 60; i < 64; ++i) CHECK(bytes[i] == std::byte{0});
}

void test_frame_header_round_trip() {
  FrameHeader header;
  CHECK(decode(view(encoded<kFrameHeaderBytes>(some_header())), header) == WireFault::none);
  CHECK(encoded<kFrameHeaderBytes>(header) == encoded<kFrameHeaderBytes>(some_header()));
  CHECK(header.kind == FrameKind::p2p_cts && header.length == 0x3736353433323130 && header.step == 0x27262524);
  for (int kind = 1; kind <= 8; ++kind) {
    header.kind = static_cast<FrameKind>(kind);
    FrameHeader back;
    CHECK(decode(view(encoded<kFrameHeaderBytes>(header)), back) == WireFault::none && back.kind == header.kind);
    CHECK(std::string_view(name_of(back.kind)) != "?");
  }
}

void test_frame_header_faults_are_found() {
  const auto good = encoded<kFrameHeaderBytes>(some_header());
  FrameHeader header;
  const auto fault = [&](std::size_t at, int value) { return decode(view(with(good, at, value)), header); };
  for (std::size_t i = 0; i < 4; ++i) CHECK(fault(i, 0) == WireFault::magic);
  CHECK(fault(4, 0) == WireFault::version);
  CHECK(fault(4, kWireVersion + 1) == WireFault::version);
  CHECK(fault(5, 0) == WireFault::kind);
  CHECK(fault(5, 9) == WireFault::kind);
  CHECK(fault(6, 16) == WireFault::flags);
  CHECK(fault(7, 1) == WireFault::flags);
  CHECK(fault(47, 0x40) == WireFault::length);  // offset
  CHECK(fault(55, 0x80) == WireFault::length);
  CHECK(std::string_view(describe(WireFault::length)) == "an impossible length");
}

void test_fingerprint_round_trip() {
  Fingerprint print;
  print.sequence = 0x0706050403020100;
  print.collective = 8;
  print.op = 9;
  print.dtype = 10;
  print.flags = 11;
  print.root = 0x0f0e0d0c;
  print.count = 0x1716151413121110;
  print.plan_digest = 0x1f1e1d1c1b1a1918;
  print.site = 0x2726252423222120;
  print.segment = 0x2f2e2d2c2b2a2928;
  print.segment_offset = 0x3736353433323130;
  print.reserved = 0x3f3e3d3c3b3a3938;
  const auto bytes = encoded<kFingerprintBytes>(print);
  for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(bytes[i] == static_cast<std::byte>(i));
  Fingerprint back;
  decode(view(bytes), back);
  CHECK(encoded<kFingerprintBytes>(back) == bytes && back.site == print.site);
}

void test_hello_round_trip_and_faults() {
  Hello hello;
  hello.features = 0x8000000000000001;
  hello.job = counting<16>(16);
  hello.communicator = 0x23222120;
  hello.epoch = 0x27262524;
  hello.from_rank = 0x2b2a2928;
  hello.to_rank = 0x2f2e2d2c;
  hello.connection = 0x33323130;
  hello.num_connections = 0x37363534;
  hello.nonce = counting<16>(56);
  hello.hmac = counting<32>(96);
  const auto good = encoded<kHelloBytes>(hello);
  CHECK(std::memcmp(good.data(), "HPLO\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x80", 16) == 0);
  for (std::size_t i = 16; i < 72; ++i) CHECK(good[i] == static_cast<std::byte>(i));
  for (std::size_t i = 72; i < 96; ++i) CHECK(good[i] == std::byte{0});
  for (std::size_t i = 96; i < 128; ++i) CHECK(good[i] == static_cast<std::byte>(i));
  Hello back;
  CHECK(decode(view(good), back) == WireFault::none);
  CHECK(encoded<kHelloBytes>(back) == good && back.hmac == hello.hmac && back.to_rank == hello.to_rank);
  CHECK(decode(view(with(good, 3, 0)), back) == WireFault::magic);
  CHECK(decode(view(with(good, 4, 0)), back) == WireFault::version);                   // only older than ours
  CHECK(decode(view(with(good, 5, kWireVersion + 1)), back) == WireFault::version);    // only newer
  CHECK(back.job == hello.job);                                                        // yet readable
  CHECK(decode(view(with(good, 4, kWireVersion + 1)), back) == WireFault::none);       // newer, speaks ours too
}

void test_ack_and_confirm_round_trip_and_faults() {
  HelloAck ack;
  ack.features = 3;
  ack.rank = 7;
  ack.echo = counting<16>(24);
  ack.nonce = counting<16>(40);
  ack.hmac = counting<32>(96);
  const auto good = encoded<kHelloAckBytes>(ack);
  for (std::size_t i = 24; i < 56; ++i) CHECK(good[i] == static_cast<std::byte>(i));
  for (std::size_t i = 56; i < 96; ++i) CHECK(good[i] == std::byte{0});
  HelloAck back;
  CHECK(decode(view(good), back) == WireFault::none);
  CHECK(encoded<kHelloAckBytes>(back) == good && back.rank == 7 && back.nonce == ack.nonce && back.hmac == ack.hmac);
  CHECK(decode(view(with(good, 0, 0)), back) == WireFault::magic);
  CHECK(decode(view(with(good, 4, kWireVersion + 1)), back) == WireFault::version);
  CHECK(decode(view(with(good, 5, 6)), back) == WireFault::refusal);
  CHECK(decode(view(with(good, 5, 1)), back) == WireFault::none && back.refusal == Refusal::version);
  CHECK(std::string_view(describe(back.refusal)).find("version") != std::string_view::npos);

  Confirm confirm;
  confirm.echo = counting<16>(4);
  confirm.hmac = counting<32>(32);
  const auto bytes = encoded<kConfirmBytes>(confirm);
  Confirm back_again;
  CHECK(decode(view(bytes), back_again) == WireFault::none);
  CHECK(back_again.echo == confirm.echo && back_again.hmac == confirm.hmac);
  CHECK(decode(view(with(bytes, 1, 0)), back_again) == WireFault::magic);
}

// Bit by bit, as the polynomial is defined.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78U : crc >> 1;
  }
  return ~crc;
}

void test_crc32c_agrees_with_the_definition() {
  const auto nine = std::as_bytes(std::span<const char, 9>("123456789", 9));
  CHECK(crc32c(nine) == 0xe3069283);  // the published check value
  CHECK(crc32c({}) == 0);
  std::vector<std::byte> bytes(1037);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + 7 * i);
  const std::span<const std::byte> all(bytes);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (const std::size_t size : {0, 1, 7, 8, 9, 63, 64, 1000}) {
      const auto part = all.subspan(begin, size);
      CHECK(crc32c(part) == slow_crc32c(part));
      CHECK(crc32c_portable(part) == slow_crc32c(part));
      CHECK(crc32c(part.subspan(size / 3), crc32c(part.first(size / 3))) == slow_crc32c(part));
    }
  }
  const std::uint32_t before = crc32c(all);
  bytes[500] ^= std::byte{1};
  CHECK(crc32c(all) != before);
}

}  // namespace

int main() {
  return hccl_py::testing::run_tests({
      {"frame header has the documented bytes", test_frame_header_has_the_documented_bytes},
      {"frame header round trip", test_frame_header_round_trip},
      {"frame header faults are found", test_frame_header_faults_are_found},
      {"fingerprint round trip", test_fingerprint_round_trip},
      {"hello round trip and faults", test_hello_round_trip_and_faults},
      {"ack and confirm round trip and faults", test_ack_and_confirm_round_trip_and_faults},
      {"crc32c agrees with the definition", test_crc32c_agrees_with_the_definition},
  });
}
