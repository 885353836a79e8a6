// SPDX-License-Identifier: Apache-2.0
// Wire format v1: what one rank says to another over a network. Little endian on every machine.
//   a connection:  Hello ->, <- HelloAck, Confirm ->, then frames both ways
//   a frame:       FrameHeader, a Fingerprint if flagged, `length` bytes of payload
// The layout of the handshake is frozen for all versions; frames are those of the version the handshake agreed on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hccl_py {

constexpr std::uint8_t kWireVersion = 1;        // the newest this build speaks
constexpr std::uint8_t kOldestWireVersion = 1;  // the oldest
constexpr std::uint32_t kFrameMagic = 0x4d465048;    // "HPFM"
constexpr std::uint32_t kHelloMagic = 0x4f4c5048;    // "HPLO"
constexpr std::uint32_t kAckMagic = 0x4b415048;      // "HPAK"
constexpr std::uint32_t kConfirmMagic = 0x4e435048;  // "HPCN"

enum class FrameKind : std::uint8_t {
  collective = 1,
  p2p_eager = 2,  // point to point: the payload comes at once
  p2p_rts = 3,    // ready to send: asks for a clear to send
  p2p_cts = 4,    // clear to send
  p2p_data = 5,
  abort = 6,      // the sender gave up; the payload is the reason, as text
  goodbye = 7,    // the sender closes in order
  heartbeat = 8,
};

constexpr std::uint16_t kFrameHasFingerprint = 1;  // a Fingerprint stands between header and payload
constexpr std::uint16_t kFrameHasCrc = 2;          // `crc32c` is that of the payload
// Within a host only, see Loan: the payload does not follow.
constexpr std::uint16_t kFrameLent = 4;    // it lies at `offset` of the sender's `segment`; 0: of its private memory
constexpr std::uint16_t kFrameLanded = 8;  // it is put where the receiver wants it
constexpr std::uint16_t kKnownFrameFlags = kFrameHasFingerprint | kFrameHasCrc | kFrameLent | kFrameLanded;

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint8_t version = kWireVersion;
  FrameKind kind = FrameKind::collective;
  std::uint16_t flags = 0;
  std::uint32_t epoch = 0;
  std::uint32_t communicator = 0;
  std::uint64_t sequence_or_tag = 0;  // of the collective; the tag of point-to-point
  std::uint64_t plan_digest = 0;
  std::uint16_t channel = 0;
  std::uint16_t codec = 0;  // 0: the elements as they are
  std::uint32_t step = 0;
  std::uint64_t offset = 0;  // bytes, within the message
  std::uint64_t length = 0;  // bytes of payload, the fingerprint not counted
  std::uint32_t crc32c = 0;
  std::uint32_t segment = 0;  // 0 on the wire
};

// False only in the build that tests/perf/native/contract.cpp measures the check's cost against.
#ifdef HCCL_PY_WITHOUT_CONTRACT
inline constexpr bool kCheckContract = false;
#else
inline constexpr bool kCheckContract = true;
#endif

// What a rank is about to run; all ranks must say the same.
struct Fingerprint {
  std::uint64_t sequence = 0;
  std::uint8_t collective = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t flags = 0;
  std::uint32_t root = 0;
  std::uint64_t count = 0;
  std::uint64_t plan_digest = 0;
  std::uint64_t site = 0;  // the call site, for the error message; may differ between ranks
  // Within a host: where OUTPUT lies, if that is in memory that this rank shares (SharedPlace); 0 on the wire.
  std::uint64_t segment = 0;
  std::uint64_t segment_offset = 0;
  std::uint64_t reserved = 0;
};

using JobId = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 16>;
using Hmac = std::array<std::uint8_t, 32>;  // all zero: not authenticated

// Why an acceptor sends a connection away.
enum class Refusal : std::uint8_t { none = 0, version = 1, job = 2, rank = 3, epoch = 4, connection = 5 };

// The first bytes of the side that connected.
struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint8_t version = kWireVersion;
  std::uint8_t oldest_version = kOldestWireVersion;
  std::uint64_t features = 0;  // bits the sender understands; none are defined yet
  JobId job{};
  std::uint32_t communicator = 0;
  std::uint32_t epoch = 0;
  std::uint32_t from_rank = 0;
  std::uint32_t to_rank = 0;
  std::uint32_t connection = 0;       // index of this connection within the pair
  std::uint32_t num_connections = 1;  // of the pair
  Nonce nonce{};
  Hmac hmac{};
};

// The answer of the side that accepted.
struct HelloAck {
  std::uint32_t magic = kAckMagic;
  std::uint8_t version = kWireVersion;  // the one both speak from now on
  Refusal refusal = Refusal::none;
  std::uint64_t features = 0;  // those of both sides
  std::uint32_t rank = 0;      // of the acceptor
  Nonce echo{};                // the Hello's nonce
  Nonce nonce{};
  Hmac hmac{};
};

// Sent on the one connection that the connecting side keeps, where several addresses of a peer answered.
struct Confirm {
  std::uint32_t magic = kConfirmMagic;
  Nonce echo{};  // the HelloAck's nonce
  Hmac hmac{};
};

constexpr std::size_t kFrameHeaderBytes = 64;
constexpr std::size_t kFingerprintBytes = 64;
constexpr std::size_t kHelloBytes = 128;
constexpr std::size_t kHelloAckBytes = 128;
constexpr std::size_t kConfirmBytes = 64;

// What is wrong with received bytes. An offset or a length of 2^62 or more is impossible.
enum class WireFault : std::uint8_t { none, magic, version, kind, flags, length, refusal };
const char* describe(WireFault fault);
const char* describe(Refusal refusal);
const char* name_of(FrameKind kind);

void encode(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);
void encode(const Fingerprint& fingerprint, std::span<std::byte, kFingerprintBytes> out);
void encode(const Hello& hello, std::span<std::byte, kHelloBytes> out);
void encode(const HelloAck& ack, std::span<std::byte, kHelloAckBytes> out);
void encode(const Confirm& confirm, std::span<std::byte, kConfirmBytes> out);

// `out` is always filled; with WireFault::magic or ::version its fields may mean nothing. A Hello is of a wrong version
// only if its range of versions and ours have none in common, and is readable even then.
WireFault decode(std::span<const std::byte, kFrameHeaderBytes> in, FrameHeader& out);
void decode(std::span<const std::byte, kFingerprintBytes> in, Fingerprint& out);
WireFault decode(std::span<const std::byte, kHelloBytes> in, Hello& out);
WireFault decode(std::span<const std::byte, kHelloAckBytes> in, HelloAck& out);
WireFault decode(std::span<const std::byte, kConfirmBytes> in, Confirm& out);

// CRC-32C (Castagnoli) of `bytes`; to go on, pass the result of the bytes before.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
// The same on any CPU, slower.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace hccl_py
