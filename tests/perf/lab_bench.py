"""Measures tcp and the hierarchical plans on lab hosts, against gloo, raw sockets and a flat ring.

Root only (network namespaces). All in one run, in turns, medians; raw samples go beside the claims::

    python tests/perf/lab_bench.py [--only tcp|2x2|4x2] [--quick]

The claims go to out/bench/cpu.json, beside those of other parts of that section.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lab")]

from claims import OUT, Claims  # noqa: E402
from lab import Lab  # noqa: E402
from nodes import Nodes  # noqa: E402

from hccl_py.lab.kernel import obstacle  # noqa: E402

MIB = 1 << 20
LINE = "1Gbit/s"
LINE_bits_per_s = 1e9
FREE_START_BYTES = 131072  # what the shaper lets through at once: not to be counted as speed
PARTS = {
    "tcp": ("tcp_throughput", "tcp_latency", "tcp_line_rate"),
    **{f"{h}x2": tuple(f"hierarchical_{h}x2_{what}" for what in ("bytes", "time", "ring")) for h in (2, 4)},
}


class Bench:
    """The measurements; each records its claims.

    Args:
        claims: of section cpu.
        rounds: of each measurement.
        folder: for logs and a compiled program.
    """

    def __init__(self, claims: Claims, rounds: int, folder: Path) -> None:
        self._claims = claims
        self._rounds = rounds
        self._folder = folder

    def run(self, part: str) -> None:
        """One of PARTS."""
        if part == "tcp":
            self.tcp()
        else:
            self.hierarchical(int(part[0]))

    def _record(self, name: str, value: float, n: int, samples: Mapping[str, Any], baseline: str) -> None:
        part = next(part for part, names in PARTS.items() if name in names)
        command = f"python tests/perf/lab_bench.py --only {part}"
        self._claims.record(name, value, command=command, n=n, samples=samples, baseline=baseline)

    def tcp(self) -> None:
        """Two hosts, one rank each, first as fast as it goes, then shaped."""
        with Lab("tcp", 2) as lab, Nodes(lab, self._folder / "log", HERE / "lab_tasks.py") as nodes:
            pairs = {
                what: nodes.run(
                    "against_gloo", (0, 1), limit_s=60, what=what, size_bytes=16 * MIB, rounds=self._rounds
                )[0]
                for what in ("all_reduce", "send_recv")
            }
            ratio = {what: _ratio(samples["gloo"], samples["hccl_py"]) for what, samples in pairs.items()}
            self._record(
                "tcp_throughput", min(ratio.values()), n=self._rounds, samples=pairs,
                baseline=", ".join(
                    f"{what} hccl_py {16 * MIB / median(s['hccl_py']) / 1e6:.0f} MB/s, gloo "
                    f"{16 * MIB / median(s['gloo']) / 1e6:.0f} MB/s ({ratio[what]:.2f}x)"
                    for what, s in pairs.items()
                ),
            )  # fmt: skip
            raw_ns, ours_ns, gloo_ns = self._latencies(lab, nodes)
            self._record(
                "tcp_latency", median(ours_ns["hccl_py"]) / min(median(raw_ns["spin"]), median(raw_ns["block"])),
                n=self._rounds, samples={**raw_ns, **ours_ns},
                baseline=f"one way: hccl_py {median(ours_ns['hccl_py']) / 1e3:.1f} us, raw sockets "
                f"{median(raw_ns['spin']) / 1e3:.1f} us polling, {median(raw_ns['block']) / 1e3:.1f} us blocking, gloo "
                f"{median(gloo_ns) / 1e3:.1f} us",
            )  # fmt: skip
            for node in range(2):
                lab.rate(node, LINE)
            shaped = {
                what: nodes.run(
                    "against_gloo", (0, 1), limit_s=60, what=what, size_bytes=16 * MIB, rounds=self._rounds // 4 + 1
                )[0]
                for what in ("all_reduce", "send_recv")
            }
            # Of an all_reduce over two hosts each sends 2 (h - 1) / h = 1 times the size.
            share = {
                what: {
                    name: (16 * MIB - FREE_START_BYTES) * 8 / median(s) / LINE_bits_per_s for name, s in both.items()
                }
                for what, both in shaped.items()
            }
            self._record(
                "tcp_line_rate", min(of["hccl_py"] for of in share.values()), n=self._rounds // 4 + 1, samples=shaped,
                baseline=", ".join(
                    f"{what} hccl_py {of['hccl_py']:.3f}, gloo {of['gloo']:.3f}" for what, of in share.items()
                ),
            )  # fmt: skip

    def _latencies(self, lab: Lab, nodes: Nodes) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
        """One-way times in ns: of raw sockets, of ours, of gloo."""
        program = self._folder / "raw_pingpong"
        compiler = shutil.which("c++") or "g++"
        subprocess.run(
            [compiler, "-O2", "-std=c++20", "-o", program, HERE / "raw_pingpong.cpp"], check=True, timeout=60
        )
        raw: dict[str, list[float]] = {"spin": [], "block": []}
        ours: dict[str, list[float]] = {"hccl_py": []}
        gloo: list[float] = []
        for turn in range(3):
            for how, samples in raw.items():
                samples += _raw(lab, program, how, 5100 + 2 * turn + (how == "spin"))
            found = nodes.run(
                "against_gloo", (0, 1), limit_s=60, what="send_recv", size_bytes=8, rounds=10, repeats=200
            )
            ours["hccl_py"] += [seconds * 1e9 for seconds in found[0]["hccl_py"]]
            gloo += [seconds * 1e9 for seconds in found[0]["gloo"]]
        return raw, ours, gloo

    def hierarchical(self, hosts: int) -> None:
        """``hosts`` x 2 ranks, interleaved, at 1 Gbit/s."""
        size_bytes, name = 16 * MIB, f"hierarchical_{hosts}x2"
        places = [*range(hosts), *range(hosts)]
        with Lab(f"h{hosts}", hosts, LINE) as lab, Nodes(lab, self._folder / "log", HERE / "lab_tasks.py") as nodes:
            rounds = self._rounds // 6 + 1
            found = nodes.run(
                "algorithms", places, limit_s=120, size_bytes=size_bytes, rounds=rounds, names=["hierarchical", "ring"]
            )[0]
            wire = self._wire(lab, nodes, places, size_bytes)
        samples, bound_bytes = found["samples"], 2 * (hosts - 1) / hosts * size_bytes
        bound_s = bound_bytes * 8 / LINE_bits_per_s
        ours_s = median(samples["hierarchical"])
        error = found["errors"]["hierarchical"]
        if not error <= 2 * hosts:  # each value is rounded once on each host and once for each other host
            raise AssertionError(f"{name}: the result is {error:.1f} roundings away from the reference in float64")
        worst = max(wire, key=lambda nbytes: max(nbytes / bound_bytes, bound_bytes / nbytes))
        self._record(
            f"{name}_bytes", max(worst / bound_bytes, bound_bytes / worst), n=len(wire), samples={"bytes": wire},
            baseline=f"2(h-1)/h x S = {bound_bytes / MIB:.1f} MiB a host and direction; counted {min(wire) / MIB:.2f} "
            f"to {max(wire) / MIB:.2f} MiB; {error:.2f} roundings from the float64 reference",
        )  # fmt: skip
        self._record(
            f"{name}_time", bound_s / ours_s, n=rounds, samples=samples,
            baseline=f"bound {bound_s * 1e3:.1f} ms; hierarchical {ours_s * 1e3:.1f} ms, gloo "
            f"{median(samples['gloo']) * 1e3:.1f} ms",
        )  # fmt: skip
        self._record(
            f"{name}_ring", _ratio(samples["ring"], samples["hierarchical"]), n=rounds, samples=samples,
            baseline=f"flat ring in rank order {median(samples['ring']) * 1e3:.1f} ms",
        )  # fmt: skip

    def _wire(self, lab: Lab, nodes: Nodes, places: Sequence[int], size_bytes: int) -> list[float]:
        """Bytes of one all_reduce that each host sent and received: the difference of five and of one."""
        counted = []
        for repeats in (1, 5):
            before = [lab.counters(node) for node in range(lab.nodes)]
            nodes.run("only", places, algorithm="hierarchical", size_bytes=size_bytes, repeats=repeats)
            counted.append([lab.counters(node) - old for node, old in enumerate(before)])
        directions = [
            (many.sent_bytes - one.sent_bytes, many.received_bytes - one.received_bytes)
            for one, many in zip(*counted, strict=True)
        ]
        return [nbytes / 4 for pair in directions for nbytes in pair]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median of the paired ratios."""
    return median(a / b for a, b in zip(theirs, ours, strict=True))


def _raw(lab: Lab, program: Path, how: str, port: int) -> list[float]:
    server = subprocess.Popen([*lab.prefix(1), str(program), "server", str(port), how])
    try:
        client = [*lab.prefix(0), str(program), "client", lab.address(1), str(port), "3000", how]
        shown = subprocess.run(client, capture_output=True, text=True, timeout=30, check=True).stdout
    finally:
        server.kill()
        server.wait()
    return [float(shown) / 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    options = parser.parse_args()
    why = obstacle()
    if why is not None:
        print(f"no lab: {why}", file=sys.stderr)
        return 2
    parts = [part for part in PARTS if options.only in (None, part)]
    claims = Claims("cpu", [name for part in parts for name in PARTS[part]])
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(claims, 6 if options.quick else 36, Path(folder))
        for part in parts:
            bench.run(part)
    return claims.finish(OUT / "cpu.json")


if __name__ == "__main__":
    sys.exit(main())
