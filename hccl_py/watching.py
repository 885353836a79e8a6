"""What `hccl-py watch` shows of a job: a picture for people, and a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hccl_py.core.units import format_bytes, format_seconds

_MOST_LINKS, _MOST_DECISIONS = 24, 8
_MICRO = 1e6


class Job:
    """The state of one job, from the lines of its status file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._head: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._decisions: list[dict[str, Any]] = []
        self._ended = False

    def take(self, line: dict[str, Any]) -> None:
        """The next line."""
        kind = line.get("kind")
        if kind == "job":
            self._head = line
        elif kind == "step":
            self._last = line
        elif kind == "end":
            self._ended = True
        else:
            self._decisions = [*self._decisions, line][-_MOST_DECISIONS:]

    def picture(self) -> RenderableType:
        """Title, links, buckets and decisions."""
        if not self._last:
            return Text(f"{self._name}: nothing was measured yet")
        return Group(self._title(), self._links(), self._buckets(), self._told())

    def _title(self) -> Text:
        last = self._last
        hidden = "?" if last["hidden"] is None else f"{last['hidden']:.0%}"
        late = f", late: rank {', '.join(map(str, last['late']))}" if last["late"] else ""
        ranks, step_s, waiting_s = self._head.get("ranks", "?"), last["step_s"], last["exposed_s"]
        words = (
            f"{self._name}: {ranks} ranks, step {last['step']}, {format_seconds(step_s)} a step, "
            f"{format_seconds(waiting_s)} waiting, {hidden} of communication hidden{late}"
        )
        return Text(words + (" (ended)" if self._ended else ""))

    def _links(self) -> Table:
        table = Table(title="links", title_justify="left")
        for column in ("link", "Mbit/s", "declared", "+-", "seen"):
            table.add_column(column, justify="left" if column == "link" else "right")
        ordered = sorted(self._last["links"], key=lambda link: link["Bps"] / link["nominal_Bps"])
        for link in ordered[:_MOST_LINKS]:
            seen = "never" if link["since_steps"] is None else f"{link['since_steps']} steps ago"
            figures = (f"{link['Bps'] * 8e-6:.0f}", f"{link['nominal_Bps'] * 8e-6:.0f}", f"{link['sigma']:.0%}", seen)
            table.add_row(link["link"], *figures)
        return table

    def _buckets(self) -> Table:
        table = Table(title="buckets of rank 0", title_justify="left")
        for column in ("bytes", "from", "to", "took"):
            table.add_column(column, justify="right")
        for one in self._last["buckets"][:_MOST_LINKS]:
            took = format_seconds(one["end_s"] - one["start_s"])
            table.add_row(
                format_bytes(one["bytes"]), format_seconds(one["start_s"]), format_seconds(one["end_s"]), took
            )
        return table

    def _told(self) -> Table:
        table = Table(title="decisions", title_justify="left")
        for column in ("step", "what", "why", "predicted", "achieved"):
            table.add_column(column, justify="left" if column in ("what", "why") else "right")
        achieved = {one["step"]: one for one in self._last["outcomes"]}
        for one in self._decisions:
            near = [s for s in achieved if 0 <= one["step"] - s <= 2 and one["kind"] == "switch"]
            outcome: dict[str, Any] = achieved[near[-1]] if near else {}
            gain = outcome.get("achieved_gain_s")
            predicted = f"{one['predicted_gain_s'] * 1e3:.1f} ms" if one["kind"] == "switch" else ""
            table.add_row(
                str(one["step"]), one["kind"], one["why"], predicted, "" if gain is None else f"{gain * 1e3:.1f} ms"
            )
        return table


def perfetto(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Chrome's trace format: backward, each bucket and each flow between ranks have a lane; decisions are marks."""
    events: list[dict[str, Any]] = []
    lanes: dict[str, int] = {}

    def lane(name: str) -> int:
        if name not in lanes:
            lanes[name] = len(lanes) + 1
            name_of = {"ph": "M", "name": "thread_name", "pid": 1, "tid": lanes[name], "args": {"name": name}}
            events.append(name_of)
        return lanes[name]

    def span(name: str, where: str, begin_s: float, length_s: float, **args: Any) -> None:
        place = {"ph": "X", "pid": 1, "tid": lane(where), "ts": begin_s * _MICRO, "dur": max(length_s, 0.0) * _MICRO}
        events.append({"name": name, **place, "args": args})

    for line in lines:
        if line["kind"] == "step":
            begin_s = line["time_s"] - line["step_s"]
            span(f"step {line['step']}", "step", begin_s, line["step_s"], exposed_s=line["exposed_s"])
            span("backward", "compute", begin_s, line["backward_s"])
            for i, one in enumerate(line["buckets"]):
                span(format_bytes(one["bytes"]), f"bucket {i}", begin_s + one["start_s"], one["end_s"] - one["start_s"])
            for flow in line["flows"]:
                where = f"rank {flow['src']} to {flow['dst']}, channel {flow['channel']}"
                span(format_bytes(flow["bytes"]), where, begin_s, flow["busy_s"])
        elif line["kind"] in ("switch", "probe"):
            mark = {"ph": "i", "s": "g", "pid": 1, "tid": lane("decisions"), "ts": line["time_s"] * _MICRO}
            events.append({"name": f"{line['kind']}: {line['why']}", **mark})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
