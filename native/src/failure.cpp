// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/failure.hpp"

#include "hccl_py/error.hpp"
#include "hccl_py/executor.hpp"

namespace hccl_py {
namespace {

Fingerprint fingerprint_of(const Op& op) {
  Fingerprint f;
  f.sequence = op.sequence;
  f.collective = static_cast<std::uint8_t>(op.call.collective);
  f.op = static_cast<std::uint8_t>(op.call.op);
  f.dtype = static_cast<std::uint8_t>(op.call.dtype);
  f.flags = op.call.uneven() ? 1 : 0;
  f.root = op.call.root;
  f.count = op.call.count;
  f.plan_digest = op.executor != nullptr ? op.executor->program().header().digest : 0;
  return f;
}

bool rooted(Collective collective) {
  switch (collective) {
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::gather:
    case Collective::scatter: return true;
    case Collective::all_reduce:
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::barrier: return false;
  }
  return false;
}

}  // namespace

std::string describe(const Fingerprint& f) {
  if (f.collective >= kNumCollectives || f.dtype >= kNumDTypes || f.op >= kNumReduceOps) return "something unknown";
  const auto collective = static_cast<Collective>(f.collective);
  std::string text = std::string(name_of(collective)) + " #" + std::to_string(f.sequence);
  if (collective == Collective::barrier) return text;
  text += " (";
  if (reduces(collective)) text += std::string(name_of(static_cast<ReduceOp>(f.op))) + ", ";
  text += std::string(name_of(static_cast<DType>(f.dtype))) + ", ";
  text += (f.flags & 1) != 0 ? "uneven blocks" : std::to_string(f.count) + " elements a block";
  if (rooted(collective)) text += ", root " + std::to_string(f.root);
  return text + ")";
}

void raise_failure(const Op& op, std::uint32_t rank) {
  const Failure& why = *op.failure;
  const std::string who = "rank " + std::to_string(rank) + ": ";
  const std::string what = op.kind == Op::Kind::collective ? describe(fingerprint_of(op)) : op.kind == Op::Kind::send ? "send" : "recv";
  switch (why.kind) {
    case FailureKind::timeout:
      throw CollectiveTimeoutError(who + what + " timed out after " + std::to_string(why.waited_s) + " s: " + why.text,
                                   static_cast<int>(rank), why.culprit, why.step, why.waited_s);
    case FailureKind::peer_lost:
      throw PeerLostError(who + what + ": " + (why.text.empty() ? "lost" : why.text) +
                              (why.text.find("rank") == std::string::npos ? " (rank " + std::to_string(why.culprit) + ")" : ""),
                          why.culprit);
    case FailureKind::desync: {
      Fingerprint ours = fingerprint_of(op);
      std::string mine = what, theirs;
      if (why.theirs.sequence != 0) {
        theirs = describe(why.theirs);
        if (mine == theirs) {
          mine += " by plan " + std::to_string(ours.plan_digest);
          theirs += " by plan " + std::to_string(why.theirs.plan_digest);
        }
      }
      std::string text = who + "ranks disagree: rank " + std::to_string(rank) + " runs " + mine;
      if (!theirs.empty()) text += ", rank " + std::to_string(why.culprit) + " runs " + theirs;
      if (!why.text.empty()) text += " (" + why.text + ")";
      throw DesyncError(text, mine, theirs, why.culprit);
    }
    case FailureKind::truncated: throw DesyncError(who + why.text, what, "", why.culprit);
    case FailureKind::transport: throw PeerLostError(who + what + ": connection to rank " + std::to_string(why.culprit) + ": " + why.text, why.culprit);
    case FailureKind::aborted: throw BrokenGroupError(who + what + ": " + why.text);
    case FailureKind::internal:
    case FailureKind::none: break;
  }
  throw InternalError(who + what + ": " + why.text);
}

}  // namespace hccl_py
