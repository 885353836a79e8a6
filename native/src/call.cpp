// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/call.hpp"

#include <numeric>

namespace hccl_py {
namespace {

// `count` of the fingerprint: elements per block; of uneven blocks a hash of their counts.
std::uint64_t contract_count(const Call& call, std::uint32_t world) {
  if (!call.uneven()) return call.count;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by words
  for (const std::uint64_t count : known_counts(call, world)) hash = (hash ^ count) * 0x100000001b3;
  return hash;
}

}  // namespace

std::uint64_t elements(std::uint32_t blocks, std::uint64_t count, const std::uint64_t* counts) {
  if (counts == nullptr || blocks <= 1) return blocks * count;
  return std::accumulate(counts, counts + blocks, std::uint64_t{0});
}

std::span<const std::uint64_t> known_counts(const Call& call, std::uint32_t world) {
  const std::uint64_t* counts = call.collective == Collective::all_gather       ? call.output_counts
                                : call.collective == Collective::reduce_scatter ? call.input_counts
                                                                                : nullptr;
  return counts == nullptr ? std::span<const std::uint64_t>() : std::span(counts, world);
}

Fingerprint fingerprint_of(const ProgramHeader& header, const Call& call) {
  Fingerprint contract;
  contract.collective = static_cast<std::uint8_t>(call.collective);
  contract.op = reduces(call.collective) ? static_cast<std::uint8_t>(call.op) : 0;
  contract.dtype = static_cast<std::uint8_t>(call.dtype);
  contract.flags = call.uneven() ? 1 : 0;
  contract.root = call.root;
  contract.count = contract_count(call, header.world);
  contract.plan_digest = header.digest;
  return contract;
}

}  // namespace hccl_py
