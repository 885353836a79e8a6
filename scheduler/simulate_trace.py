"""Simulations as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from hccl_py.core.errors import ConfigError
from hccl_py.scheduler.simulate import Simulation


def write_trace(simulations: Sequence[tuple[str, Simulation]], path: Path) -> Path:
    """Write Trace Event JSON: a process for each plan and rank, a thread for each peer it sends to, times in us.

    Raises:
        ConfigError: the file cannot be written.
    """
    events: list[dict[str, object]] = []
    first = 0
    for name, simulation in simulations:
        graph, times = simulation.graph, simulation.times
        ranks = sorted(set(graph.rank.tolist()))
        for rank in ranks:
            about = {"name": f"{name}, rank {rank}"}
            events.append({"ph": "M", "name": "process_name", "pid": first + rank, "tid": 0, "args": about})
        for rank, peer in sorted(set(zip(graph.rank.tolist(), graph.peer.tolist(), strict=True))):
            about = {"name": f"to rank {peer}" if peer != rank else "inside"}
            events.append({"ph": "M", "name": "thread_name", "pid": first + rank, "tid": peer, "args": about})
        columns = (graph.rank, graph.peer, graph.step, graph.size_bytes, times.start_s, times.sent_s, times.arrived_s)
        for rank, peer, step, size, start_s, sent_s, arrived_s in zip(*(c.tolist() for c in columns), strict=True):
            if math.isnan(sent_s):
                continue
            about_it = {"bytes": int(size), "step": step}
            if not math.isnan(arrived_s):
                about_it["arrived_us"] = arrived_s * 1e6
            events.append(
                {
                    "ph": "X", "name": f"step {step}", "cat": "message", "pid": first + rank, "tid": peer,
                    "ts": start_s * 1e6, "dur": (sent_s - start_s) * 1e6, "args": about_it,
                }
            )  # fmt: skip
        first += ranks[-1] + 1 if ranks else 0
    try:
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return path
