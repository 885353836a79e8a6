"""What links do now, from what was measured of flows between ranks; and when to look more closely.

Two sources. *Flows*: bytes that a rank sent to a peer over the seconds during which the network had some of them and
the peer had room; a late or starved peer makes others wait, but not its flows slow. A flow can be slow because of any
link on its way or of other flows beside it, so flows only raise a suspicion, against their own past under the same
plans. *Probes*: in each round every rank sends to one other. A link carries at least the sum of what crossed it in a
round, so its figure is the largest such sum (never above the topology's own figure): a link is slow only if everything
over it was slow.

Each link has a Kalman filter for the logarithm of its bandwidth (R. Kalman, 1960; a random walk observed with noise).
A sample far off its state (four deviations, a factor of 1.3 at least) is a change if the next probe agrees with it,
else a blip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.scheduler.measurement import Measurement, Probe
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

Ends = tuple[str, str]
_NOISE = 0.1  # standard deviation of the logarithm of one sample
_DRIFT = 0.01  # and of its change from step to step
_CHANGE = math.log(1.3)
_AGREE = math.log(1.25)
_LEAST_BUSY_S = 0.02  # less is a few ticks of the kernel
_LEAST_BYTES = 64 * 1024
_SUSPECT = 1.6
_SHARE = 0.85  # what a probe reaches of a healthy link, headers and bursts considered; above, it is taken for healthy


@dataclass(frozen=True)
class LinkEstimate:
    """One direction of a link, as it is believed to be.

    Attributes:
        nominal_Bps: what the topology says.
        bandwidth_Bps: the estimate.
        latency_s: what the topology says.
        sigma: standard deviation of the estimate, relative.
        since_steps: steps since the last sample; None: there was none.
    """

    src: str
    dst: str
    nominal_Bps: float
    bandwidth_Bps: float
    latency_s: float
    sigma: float
    since_steps: int | None


@dataclass
class _Filter:
    """The logarithm of measured over nominal bandwidth."""

    mean: float = 0.0
    variance: float = 0.04
    step: int | None = None
    odd: float | None = None  # the last sample, if it was far off

    def see(self, step: int, sample: float) -> bool:
        """Take a sample; True if it shows that the link has changed."""
        variance = self.variance + _DRIFT**2 * (step - self.step if self.step is not None else 0)
        self.step = step
        if abs(sample - self.mean) > max(_CHANGE, 4 * math.sqrt(variance + _NOISE**2)):
            if self.odd is not None and abs(sample - self.odd) < _AGREE:
                self.mean, self.variance, self.odd = (sample + self.odd) / 2, _NOISE**2 / 2, None
                return True
            self.odd = sample
            return False
        self.odd = None
        gain = variance / (variance + _NOISE**2)
        self.mean += gain * (sample - self.mean)
        self.variance = (1 - gain) * variance
        return False


class Estimator:
    """The network links between the ranks that sit at ``placement`` in ``topology``."""

    def __init__(self, topology: Topology, placement: Placement) -> None:
        self._topology, self._placement = topology, placement
        self._paths: dict[tuple[int, int], tuple[Ends, ...]] = {}
        self._nominal = {(e.src, e.dst): e for e in topology.links if e.kind.is_network}
        self._filters: dict[Ends, _Filter] = {}
        self._rates: dict[tuple[int, int], float] = {}  # of flows, under the plans in use
        self._step = 0
        self._believed: Topology | None = topology  # None: to be made anew

    # ---- flows

    def suspicious(self, measurements: Sequence[Measurement]) -> str:
        """Why flows look as if a link had changed; empty if they do not."""
        found = ""
        for one in sorted(measurements, key=lambda m: m.rank):
            flows: dict[int, tuple[int, float]] = {}
            for use in one.channels:
                sent, busy_s = flows.get(use.peer, (0, 0.0))
                flows[use.peer] = sent + use.sent_bytes, max(busy_s, use.busy_s - use.stalled_s)
            for peer, (sent, busy_s) in sorted(flows.items()):
                if busy_s < _LEAST_BUSY_S or sent < _LEAST_BYTES:
                    continue
                rate, ends = sent / busy_s, (one.rank, peer)
                usual = self._rates.setdefault(ends, rate)
                if not usual / _SUSPECT <= rate <= usual * _SUSPECT:
                    found = found or f"rank {one.rank} to {peer}: {rate / 1e6:.1f} MB/s, usually {usual / 1e6:.1f}"
                else:
                    self._rates[ends] = usual + 0.3 * (rate - usual)
        return found

    def forget_flows(self) -> None:
        """Plans have changed, or links have: what flows do is to be learnt anew."""
        self._rates.clear()

    # ---- probes

    def see(self, probes: Sequence[Probe]) -> tuple[Ends, ...]:
        """Take the probes of all ranks; return the links that have changed.

        A first odd sample changes nothing: :attr:`doubtful` says that a second one is wanted.
        """
        most: dict[Ends, float] = {}
        for number in sorted({probe.number for probe in probes}):
            together = [probe for probe in probes if probe.number == number]
            for round_ in sorted({run.round for probe in together for run in probe.runs}):
                crossed: dict[Ends, float] = {}
                for probe in sorted(together, key=lambda p: p.rank):
                    for run in probe.runs:
                        if run.round == round_ and run.seconds > 0:
                            for ends in self._path(run.src, probe.rank):
                                crossed[ends] = crossed.get(ends, 0.0) + run.num_bytes / run.seconds
                for ends, rate in crossed.items():
                    most[ends] = max(most.get(ends, 0.0), rate)
            self._step = max(self._step, *(probe.step for probe in together))
        changed = []
        self._believed = None
        for ends, rate in sorted(most.items()):
            share = min(1.0, rate / self._nominal[ends].bandwidth_Bps)
            sample = 0.0 if share >= _SHARE else math.log(share)
            if self._filters.setdefault(ends, _Filter()).see(self._step, sample):
                changed.append(ends)
        return tuple(changed)

    @property
    def doubtful(self) -> bool:
        """True if the last probe saw a link far off what was believed, and another probe should confirm it."""
        return any(one.odd is not None and one.step == self._step for one in self._filters.values())

    def _path(self, src: int, dst: int) -> tuple[Ends, ...]:
        if (src, dst) not in self._paths:
            links = self._placement.path(src, dst, self._topology)
            self._paths[src, dst] = tuple((e.src, e.dst) for e in links if e.kind.is_network)
        return self._paths[src, dst]

    # ---- results

    def estimates(self, step: int) -> tuple[LinkEstimate, ...]:
        """All links between hosts, in the order of the topology."""
        found = []
        for ends, link in self._nominal.items():
            one = self._filters.get(ends, _Filter())
            sigma = math.sqrt(one.variance + _DRIFT**2 * (step - one.step if one.step is not None else 0))
            since = None if one.step is None else step - one.step
            nominal = link.bandwidth_Bps
            found.append(LinkEstimate(*ends, nominal, nominal * math.exp(one.mean), link.latency_s, sigma, since))
        return tuple(found)

    def topology(self) -> Topology:
        """The graph with the links that are far from their figures replaced by the estimates, in two digits."""
        if self._believed is not None:
            return self._believed
        far = {
            (e.src, e.dst): (float(f"{e.bandwidth_Bps:.2g}"), e.latency_s)
            for e in self.estimates(self._step)
            if abs(math.log(e.bandwidth_Bps / e.nominal_Bps)) > _CHANGE
        }
        self._believed = self._topology.with_estimates(far) if far else self._topology
        return self._believed
