"""A network that need not exist, for tests of the policy: what ranks would measure in it, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hccl_py.core.types import Collective, DType
from hccl_py.probing import BODY_BYTES, rounds
from hccl_py.scheduler.arrangement import Arrangement, Arranger
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.budgets import Budgets
from hccl_py.scheduler.decision import Decision, Kind
from hccl_py.scheduler.measurement import BucketRun, ChannelUse, Measurement, Probe, ProbeRun
from hccl_py.scheduler.partition import ends_s
from hccl_py.scheduler.policy import Policy
from hccl_py.scheduler.pricing import Pricing
from hccl_py.scheduler.select import build_table
from hccl_py.scheduler.timeline import Timeline
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement

WORLD = 4
GBIT_Bps = 125e6


def star(rates_Bps: Mapping[int, float] | None = None) -> Topology:
    """Four hosts with a rank each around a switch."""
    nodes, links = [Node("star", NodeKind.SWITCH)], []
    for i in range(WORLD):
        host, nic, cpu = f"h{i}", f"h{i}/eth0", f"h{i}/cpu0"
        nodes += [Node(host, NodeKind.HOST), Node(nic, NodeKind.NIC), Node(cpu, NodeKind.DEVICE, DeviceKind.CPU)]
        rate = (rates_Bps or {}).get(i, GBIT_Bps)
        for a, b, kind, bandwidth, latency in (
            (cpu, host, LinkKind.MEMORY, 12e9, 1e-7),
            (nic, host, LinkKind.MEMORY, 12e9, 1e-7),
            (nic, "star", LinkKind.ETHERNET, rate, 1e-5),
        ):
            links += [Link(a, b, kind, bandwidth, latency), Link(b, a, kind, bandwidth, latency)]
    return Topology(tuple(nodes), tuple(links))


DECLARED = star()
PLACEMENT = Placement.by_host(DECLARED)
_PRICING = Pricing(
    PLACEMENT,
    lambda topology, channels: build_table(Collective.ALL_REDUCE, topology, PLACEMENT, channels=channels or 2),
)
TIMELINE = Timeline(tuple(0.02 * (i + 1) for i in range(10)), (800_000,) * 10, (DType.FLOAT32,) * 10)


def pricing() -> Pricing:
    """The real planner; what it has planned is kept for the tests that follow."""
    return _PRICING


ARRANGER = Arranger(_PRICING, free_plans=True, free_buckets=True, most_bucket_bytes=32 << 20)


def policy(codecs: tuple[str, ...] = ("exact",), explore: bool = False) -> Policy:
    """One that begins with four fixed buckets."""
    buckets = BucketPlan.fixed(TIMELINE.numel, TIMELINE.dtype, 8 << 20, TIMELINE.order())
    return Policy(
        DECLARED, PLACEMENT, pricing(), buckets, Budgets(codecs=codecs), explore=explore, most_channels=2
    )  # fmt: skip


class World:
    """What happens to a job whose ranks follow decisions; ``rates_Bps`` are the links' real rates and may change."""

    def __init__(self, noise: float = 0.0) -> None:
        self.rates_Bps: dict[int, float] = {}
        self.late_s: dict[int, float] = {}
        self.starved: set[int] = set()  # ranks that take nothing from their sockets for half of the time
        self.slower = 1.0  # what all_reduces take more than the model says
        self.bad: set[str] = set()  # digests of bucket plans that are slow for no reason that anybody could know
        self.price: Callable[[Arrangement], float] = lambda arrangement: 1.0  # what nobody could know either
        self.noise = noise
        self.step = 0

    def step_s(self, policy: Policy) -> float:
        """Of one step under the arrangement in use."""
        return self._ends(policy)[-1] + 0.1 + max(self.late_s.values(), default=0.0)

    def _ends(self, policy: Policy) -> tuple[float, ...]:
        seconds = ARRANGER.seconds(policy.current, star(self.rates_Bps))
        ends = ends_s(policy.current.buckets, TIMELINE, seconds)
        factor = self.slower * (1.5 if policy.current.buckets.digest in self.bad else 1.0) * self.price(policy.current)
        return tuple(end * factor * (1 + self.noise * ((self.step * 7919) % 5 - 2)) for end in ends)

    def measure(self, policy: Policy) -> list[Measurement]:
        """One step of all ranks."""
        self.step += 1
        ends = self._ends(policy)
        buckets = policy.current.buckets.buckets
        ready = [max(TIMELINE.ready_s[span.parameter] for span in bucket.spans) for bucket in buckets]
        starts = [max(a, b) for a, b in zip(ready, (0.0, *ends[:-1]), strict=True)]
        runs = tuple(BucketRun(b.num_bytes, s, e) for b, s, e in zip(buckets, starts, ends, strict=True))
        found = []
        for rank in range(WORLD):
            peer = (rank + 1) % WORLD
            rate = min(self.rates_Bps.get(rank, GBIT_Bps), self.rates_Bps.get(peer, GBIT_Bps))
            stalled_s = 0.5 if peer in self.starved else 0.0
            use = ChannelUse(peer, 0, 10_000_000, 10_000_000 / rate + stalled_s, stalled_s)
            backward_s = TIMELINE.backward_s + self.late_s.get(rank, 0.0)
            step_s = self.step_s(policy)
            exposed_s = max(ends[-1] + max(self.late_s.values(), default=0.0) - backward_s, 1e-6)
            found.append(Measurement(self.step, rank, step_s, backward_s, exposed_s, channels=(use,), buckets=runs))
        return found

    def probe(self, number: int) -> list[Probe]:
        """A probe by all ranks."""
        found = []
        for rank in range(WORLD):
            runs = []
            for turn, shift in enumerate(rounds(WORLD)):
                src = (rank - shift) % WORLD
                rate = min(self.rates_Bps.get(rank, GBIT_Bps), self.rates_Bps.get(src, GBIT_Bps))
                runs.append(ProbeRun(turn, src, BODY_BYTES, BODY_BYTES / rate))
            found.append(Probe(self.step, rank, number, sum(run.seconds for run in runs), tuple(runs)))
        return found

    def run(self, policy: Policy, measurements: int) -> list[Decision]:
        """So many measurements, all of them heard; the switches that were adopted."""
        switches = []
        for _ in range(measurements):
            decision = policy.observe(self.step, self.measure(policy), TIMELINE)
            number = 0
            while decision.kind is Kind.PROBE:
                decision = policy.observe(self.step, self.probe(number))
                number += 1
                assert number < 5
            if decision.switches:
                policy.adopt(decision)
                switches.append(decision)
        return switches
