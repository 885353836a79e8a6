// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of wire format v1, and CRC-32C. Fields are written one by one in the order of the layout, so
// that neither padding nor the byte order of the machine reaches the wire; compilers merge the stores.
#include "hccl_py/wire.hpp"

#include <bit>
#include <cassert>
#include <cstring>
#include <type_traits>

namespace hccl_py {
namespace {

template <typename T>
T little(T value) {
  if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
    return value;
  } else if constexpr (sizeof(T) == 2) {
    return __builtin_bswap16(value);
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bswap32(value);
  } else {
    return __builtin_bswap64(value);
  }
}

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  Writer& put(T value) {
    static_assert(std::is_unsigned_v<T>);
    const T wire = little(value);
    std::memcpy(at_, &wire, sizeof wire);
    at_ += sizeof wire;
    return *this;
  }
  template <std::size_t n>
  Writer& put(const std::array<std::uint8_t, n>& bytes) {
    std::memcpy(at_, bytes.data(), n);
    at_ += n;
    return *this;
  }
  // Zeros up to `end`, which is where the next field begins.
  void pad_to(const std::byte* end) {
    assert(at_ <= end);
    while (at_ != end) *at_++ = std::byte{0};
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <typename T>
  Reader& get(T& value) {
    static_assert(std::is_unsigned_v<T>);
    std::memcpy(&value, at_, sizeof value);
    value = little(value);
    at_ += sizeof value;
    return *this;
  }
  template <typename E>
    requires std::is_enum_v<E>
  Reader& get(E& value) {
    std::underlying_type_t<E> number;
    get(number);
    value = static_cast<E>(number);
    return *this;
  }
  template <std::size_t n>
  Reader& get(std::array<std::uint8_t, n>& bytes) {
    std::memcpy(bytes.data(), at_, n);
    at_ += n;
    return *this;
  }
  Reader& skip(std::size_t bytes) {
    at_ += bytes;
    return *this;
  }

 private:
  const std::byte* at_;
};

bool known(FrameKind kind) { return kind >= FrameKind::collective && kind <= FrameKind::heartbeat; }
bool known(Refusal refusal) { return refusal <= Refusal::connection; }
bool spoken(std::uint8_t version) { return version >= kOldestWireVersion && version <= kWireVersion; }

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
    table[i] = crc;
  }
  return table;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc_sse42(std::uint32_t crc, std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t wide = crc;
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; left > 0; --left, ++at) crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(*at));
  return crc;
}
#endif

}  // namespace

const char* describe(WireFault fault) {
  switch (fault) {
    case WireFault::none: return "no fault";
    case WireFault::magic: return "not a hccl_py message (wrong magic)";
    case WireFault::version: return "a wire version that this build does not speak";
    case WireFault::kind: return "an unknown kind of frame";
    case WireFault::flags: return "unknown frame flags";
    case WireFault::length: return "an impossible length";
    case WireFault::refusal: return "an unknown refusal";
  }
  return "?";
}

const char* describe(Refusal refusal) {
  switch (refusal) {
    case Refusal::none: return "accepted";
    case Refusal::version: return "it speaks no wire version that we speak";
    case Refusal::job: return "it belongs to another job or communicator";
    case Refusal::rank: return "it is another rank, or expects no connection from this one";
    case Refusal::epoch: return "it is in another epoch";
    case Refusal::connection: return "it has another number of connections per pair, or this one already";
  }
  return "?";
}

const char* name_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::collective: return "collective";
    case FrameKind::p2p_eager: return "p2p_eager";
    case FrameKind::p2p_rts: return "p2p_rts";
    case FrameKind::p2p_cts: return "p2p_cts";
    case FrameKind::p2p_data: return "p2p_data";
    case FrameKind::abort: return "abort";
    case FrameKind::goodbye: return "goodbye";
    case FrameKind::heartbeat: return "heartbeat";
  }
  return "?";
}

void encode(const FrameHeader& h, std::span<std::byte, kFrameHeaderBytes> out) {
  Writer(out.data())
      .put(h.magic).put(h.version).put(static_cast<std::uint8_t>(h.kind)).put(h.flags)
      .put(h.epoch).put(h.communicator).put(h.sequence_or_tag).put(h.plan_digest)
      .put(h.channel).put(h.codec).put(h.step).put(h.offset).put(h.length)
      .put(h.crc32c).put(h.segment)
      .pad_to(out.data() + out.size());
}

WireFault decode(std::span<const std::byte, kFrameHeaderBytes> in, FrameHeader& h) {
  Reader(in.data())
      .get(h.magic).get(h.version).get(h.kind).get(h.flags)
      .get(h.epoch).get(h.communicator).get(h.sequence_or_tag).get(h.plan_digest)
      .get(h.channel).get(h.codec).get(h.step).get(h.offset).get(h.length)
      .get(h.crc32c).get(h.segment);
  if (h.magic != kFrameMagic) return WireFault::magic;
  if (!spoken(h.version)) return WireFault::version;
  if (!known(h.kind)) return WireFault::kind;
  if ((h.flags & ~kKnownFrameFlags) != 0) return WireFault::flags;
  if (((h.offset | h.length) >> 62) != 0) return WireFault::length;
  return WireFault::none;
}

void encode(const Fingerprint& f, std::span<std::byte, kFingerprintBytes> out) {
  Writer(out.data())
      .put(f.sequence).put(f.collective).put(f.op).put(f.dtype).put(f.flags)
      .put(f.root).put(f.count).put(f.plan_digest).put(f.site)
      .put(f.segment).put(f.segment_offset).put(f.reserved)
      .pad_to(out.data() + out.size());
}

void decode(std::span<const std::byte, kFingerprintBytes> in, Fingerprint& f) {
  Reader(in.data())
      .get(f.sequence).get(f.collective).get(f.op).get(f.dtype).get(f.flags)
      .get(f.root).get(f.count).get(f.plan_digest).get(f.site)
      .get(f.segment).get(f.segment_offset).get(f.reserved);
}

void encode(const Hello& h, std::span<std::byte, kHelloBytes> out) {
  Writer writer(out.data());
  writer.put(h.magic).put(h.version).put(h.oldest_version).put(std::uint16_t{0}).put(h.features).put(h.job)
      .put(h.communicator).put(h.epoch).put(h.from_rank).put(h.to_rank).put(h.connection).put(h.num_connections)
      .put(h.nonce)
      .pad_to(out.data() + 96);
  Writer(out.data() + 96).put(h.hmac);
}

WireFault decode(std::span<const std::byte, kHelloBytes> in, Hello& h) {
  Reader(in.data())
      .get(h.magic).get(h.version).get(h.oldest_version).skip(2).get(h.features).get(h.job)
      .get(h.communicator).get(h.epoch).get(h.from_rank).get(h.to_rank).get(h.connection).get(h.num_connections)
      .get(h.nonce).skip(24)
      .get(h.hmac);
  if (h.magic != kHelloMagic) return WireFault::magic;
  if (h.oldest_version > kWireVersion || h.version < kOldestWireVersion) return WireFault::version;
  return WireFault::none;
}

void encode(const HelloAck& a, std::span<std::byte, kHelloAckBytes> out) {
  Writer writer(out.data());
  writer.put(a.magic).put(a.version).put(static_cast<std::uint8_t>(a.refusal)).put(std::uint16_t{0})
      .put(a.features).put(a.rank).put(std::uint32_t{0}).put(a.echo).put(a.nonce)
      .pad_to(out.data() + 96);
  Writer(out.data() + 96).put(a.hmac);
}

WireFault decode(std::span<const std::byte, kHelloAckBytes> in, HelloAck& a) {
  Reader(in.data())
      .get(a.magic).get(a.version).get(a.refusal).skip(2)
      .get(a.features).get(a.rank).skip(4).get(a.echo).get(a.nonce).skip(40)
      .get(a.hmac);
  if (a.magic != kAckMagic) return WireFault::magic;
  if (!known(a.refusal)) return WireFault::refusal;
  if (a.refusal == Refusal::none && !spoken(a.version)) return WireFault::version;
  return WireFault::none;
}

void encode(const Confirm& c, std::span<std::byte, kConfirmBytes> out) {
  Writer(out.data()).put(c.magic).put(c.echo).pad_to(out.data() + 32);
  Writer(out.data() + 32).put(c.hmac);
}

WireFault decode(std::span<const std::byte, kConfirmBytes> in, Confirm& c) {
  Reader(in.data()).get(c.magic).get(c.echo).skip(12).get(c.hmac);
  return c.magic == kConfirmMagic ? WireFault::none : WireFault::magic;
}

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before) {
  static constexpr std::array<std::uint32_t, 256> table = crc_table();
  std::uint32_t crc = ~before;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~crc_sse42(~before, bytes);
#endif
  return crc32c_portable(bytes, before);
}

}  // namespace hccl_py
