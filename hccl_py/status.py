"""StatusFile: what the scheduler of a job sees and does, as JSON lines in a file; `hccl-py watch` reads it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hccl_py.core.errors import ConfigError
from hccl_py.engine import Engine
from hccl_py.scheduler.decision import Decision
from hccl_py.scheduler.measurement import Measurement
from hccl_py.scheduler.policy import Policy
from hccl_py.scheduler.timeline import Timeline

_MOST_BYTES = 64 << 20  # a job of weeks must not fill the disk: what is older is dropped then


class StatusFile:
    """Lines of one job, written by rank 0; on other ranks, and without ``HCCL_PY_STATUS``, nothing is written.

    Args:
        path: None: nowhere.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self._switches = 0
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("w", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"HCCL_PY_STATUS: {path}: {error.strerror}") from error

    @classmethod
    def of(cls, engine: Engine) -> StatusFile:
        """That of a group: ``job-PID.jsonl`` in the folder that the settings name."""
        folder = engine.env.status
        if folder is None or engine.rank != 0:
            return cls(None)
        status = cls(Path(folder).expanduser() / f"job-{os.getpid()}.jsonl")
        status._write(kind="job", ranks=engine.size, placement=list(engine.planner.placement.devices))
        return status

    def measured(self, step: int, measurements: Sequence[Measurement], policy: Policy, timeline: Timeline) -> None:
        """What all ranks measured, and what the policy makes of it."""
        if self._file is None:
            return
        first = measurements[0]
        total_s = sum(run.end_s - run.start_s for run in first.buckets)
        self._write(
            kind="step",
            step=step,
            step_s=max(one.step_s for one in measurements),
            backward_s=timeline.backward_s,
            exposed_s=max(one.exposed_s for one in measurements),
            hidden=max(0.0, 1 - max(one.exposed_s for one in measurements) / total_s) if total_s > 0 else None,
            late=list(policy.late),
            links=[
                {"link": f"{e.src} -> {e.dst}", "Bps": e.bandwidth_Bps, "nominal_Bps": e.nominal_Bps, "sigma": e.sigma,
                 "since_steps": e.since_steps}
                for e in policy.estimates(step)
            ],
            buckets=[{"bytes": run.num_bytes, "start_s": run.start_s, "end_s": run.end_s} for run in first.buckets],
            flows=[
                {"src": one.rank, "dst": use.peer, "channel": use.channel, "bytes": use.sent_bytes,
                 "busy_s": use.busy_s}
                for one in measurements
                for use in one.channels
            ],
            outcomes=[vars(outcome) for outcome in policy.outcomes[-5:]],
        )  # fmt: skip

    def decided(self, step: int, decision: Decision) -> None:
        """A decision that was adopted."""
        self._write(
            kind=decision.kind.value,
            step=step,
            why=decision.why,
            predicted_gain_s=decision.predicted_gain_s,
            buckets=len(decision.buckets) if decision.buckets is not None else None,
            algorithms=sorted({choice.algorithm for choice in decision.choices}),
            codecs=sorted({choice.codec for choice in decision.choices}),
            chunk_bytes=decision.tuning.chunk_bytes,
            channels=decision.tuning.channels,
            digest=decision.digest[:16],
        )

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._write(kind="end")
            self._file.close()
            self._file = None

    def _write(self, **fields: Any) -> None:
        if self._file is None:
            return
        if self._file.tell() > _MOST_BYTES:
            self._file.seek(0)
            self._file.truncate()
        self._file.write(json.dumps({"time_s": round(time.time(), 3), **fields}) + "\n")
        self._file.flush()
