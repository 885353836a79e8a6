"""A plan in words, for `hccl-py plan --explain`."""

from __future__ import annotations

from fractions import Fraction

from hccl_py.core.types import Order
from hccl_py.scheduler.program import Where
from hccl_py.scheduler.stepgraph import StepGraph
from hccl_py.scheduler.verify import Certificate

_MAX_STEPS = 24


def explain(name: str, certificate: Certificate, digest: bytes) -> str:
    """Several lines of text on a verified plan; see `Plan.explain`."""
    graph = certificate.graph
    first = graph.programs[0]
    world = len(graph.programs)
    root = f", root {first.root}" if first.collective.rooted else ""
    lines = [
        f"{name}: {first.collective.name.lower()} over {world} ranks{root}",
        f"  digest    {digest.hex()[:16]}",
        f"  order     {_order(certificate, first.collective.reduces)}",
        f"  blocks    cut into {first.slots_per_block} slots; {first.channels} channel(s) to a peer"
        + ("; serves uneven blocks" if certificate.uneven else "; equal blocks only"),
        f"  rounds    {rounds(certificate)} one after the other"
        + (", one-round over shared memory" if first.one_round else "")
        + (", over the slots of one host each rank folds a share" if first.shared_fold else ""),
        f"  messages  {len(graph.messages)} in all, at most {_most_messages(graph)} sent by a rank",
    ]
    sent, received = traffic(graph)
    lines.append(
        f"  sent      by a rank at most {_share(max(sent))} of a block; received at most {_share(max(received))}"
    )
    rank = first.root if first.collective.rooted else world - 1
    steps = graph.programs[rank].steps
    lines.append(f"  rank {rank} does, as far as its window and its data let it:")
    lines.extend(f"    {number:3}  {step}" for number, step in enumerate(steps[:_MAX_STEPS]))
    if len(steps) > _MAX_STEPS:
        lines.append(f"    ...  and {len(steps) - _MAX_STEPS} steps more")
    return "\n".join(lines)


def rounds(certificate: Certificate) -> int:
    """The longest chain of messages of which each carries what depends on the one before."""
    graph = certificate.graph
    before: dict[int, list[int]] = {}
    for hazard in graph.hazards:
        before.setdefault(hazard.step, []).append(hazard.earlier)
    depth = [0] * len(graph.steps)
    for step in certificate.finish_order:
        chains = [depth[earlier] for earlier in before.get(step, ())]
        chains += [depth[graph.messages[m].sender] + 1 for m in graph.incoming[step] if m >= 0]
        depth[step] = max(chains, default=0)
    return max(depth, default=0)


def traffic(graph: StepGraph) -> tuple[list[Fraction], list[Fraction]]:
    """Blocks sent and received by each rank, counting every slot as the same share of a block."""
    sent = [Fraction(0)] * len(graph.programs)
    received = [Fraction(0)] * len(graph.programs)
    slots = graph.programs[0].slots_per_block
    for message in graph.messages:
        share = Fraction(graph.spans[message.sender], slots)
        sent[graph.owner[message.sender]] += share
        received[graph.owner[message.receiver]] += share
    return sent, received


def _order(certificate: Certificate, reduces: bool) -> str:
    if not reduces:
        return "canonical (nothing is added up)"
    if certificate.order is Order.CANONICAL:
        return "canonical (left fold by rank, one rounding: the same bits at any size)"
    return "free (partial sums are rounded on the way; bits depend on plan and size)"


def _most_messages(graph: StepGraph) -> int:
    counts = [
        sum(target.where is Where.PEER for step in program.steps for target in step.targets)
        for program in graph.programs
    ]
    return max(counts)


def _share(share: Fraction) -> str:
    return f"{float(share):.3g} ({share})" if share.denominator > 1 else str(share)
