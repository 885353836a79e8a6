"""What a performance run must show, and whether it did: the wanted values of wanted.toml against measured ones.

A script of this folder measures one section::

    claims = Claims("cpu")
    claims.record("torch_latency", 8.1, command="make bench-cpu PART=torch", n=40, samples=times_s, baseline="-")
    raise SystemExit(claims.finish(Path("out/bench/cpu.json")))
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hccl_py.bench.report import machine
from hccl_py.core.errors import ConfigError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

WANTED = Path(__file__).with_name("wanted.toml")
OUT = Path(__file__).parents[2] / "out" / "bench"


@dataclass(frozen=True)
class Wanted:
    """One number that is asked for: ``value sense bound`` must hold, in ``unit``; ``wanted`` is how it was worded."""

    name: str
    unit: str
    wanted: str
    sense: str  # "<=" or ">="
    bound: float

    def __post_init__(self) -> None:
        if self.sense not in ("<=", ">="):
            raise ConfigError(f'{WANTED.name}: {self.name}: sense is "{self.sense}"; it must be "<=" or ">="')

    def met_by(self, value: float) -> bool:
        """True if ``value`` is what was wanted; NaN never is."""
        return value <= self.bound if self.sense == "<=" else value >= self.bound


def load_wanted(path: Path = WANTED) -> dict[str, dict[str, Wanted]]:
    """Return ``{section: {id: Wanted}}``. Raises ConfigError where a claim lacks a key or has one too many."""
    sections: dict[str, dict[str, Wanted]] = {}
    for section, claims in tomllib.loads(path.read_text(encoding="utf-8")).items():
        sections[section] = {}
        for id_, keys in claims.items():
            try:
                sections[section][id_] = Wanted(**{**keys, "bound": float(keys["bound"])})
            except (KeyError, TypeError) as error:
                raise ConfigError(f"{path.name}: [{section}.{id_}]: {error}") from None
    return sections


class Claims:
    """The claims of one section of wanted.toml, as they are measured.

    Args:
        section: its name: "cpu", "topology", "gpu".
        part: the ids that this run measures; None: all. The others are then neither judged nor lost: :meth:`finish`
            keeps what an earlier run left of them in the file.
        wanted: where the wanted values stand.
        out: the folder of the raw samples; those of a claim go to ``out / section / id.json``.
    """

    def __init__(
        self, section: str, part: Collection[str] | None = None, *, wanted: Path = WANTED, out: Path = OUT
    ) -> None:
        sections = load_wanted(wanted)
        if section not in sections:
            raise ConfigError(f"claims: no section {section} in {wanted.name}; it has {', '.join(sections)}")
        self._section, self._wanted, self._out = section, sections[section], out / section
        self._claims: dict[str, dict[str, Any]] = {}
        self._part = list(self._wanted) if part is None else list(part)
        for id_ in self._part:
            self._known(id_)

    def record(
        self,
        id: str,
        value: float,
        *,
        command: str,
        n: int,
        samples: Sequence[float] | Mapping[str, Any],
        baseline: str,
    ) -> None:
        """Take the measured ``value`` of a claim, in its unit, and write its raw samples to their file.

        Args:
            id: the claim's key in wanted.toml (ConfigError if there is none).
            value: what was measured.
            command: what measures it again.
            n: how many samples (pairs of samples, where it is a ratio) a median is made of.
            samples: the raw samples: a list, or lists by what they are of.
            baseline: what it was measured against in the same run, with its version; "-" if nothing.
        """
        wanted = self._known(id)
        self._out.mkdir(parents=True, exist_ok=True)
        file = self._out / f"{id}.json"
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        raw = dict(samples) if isinstance(samples, Mapping) else list(samples)
        record = {"id": id, "date": date, "command": command, "machine": machine(), "samples": raw}
        file.write_text(json.dumps(record) + "\n", encoding="utf-8")
        self._claims[id] = {
            **self._unmet(id),
            "value": None if math.isnan(value) else value,
            "met": bool(wanted.met_by(value)),
            "command": command,
            "n": n,
            "samples": f"{self._section}/{id}.json",
            "baseline": baseline,
        }

    def finish(self, path: Path) -> int:
        """Write all claims to ``path``, print those of this run; return 1 if one is missed or missing, else 0."""
        earlier = {} if not path.exists() else {claim["id"]: claim for claim in json.loads(path.read_text("utf-8"))}
        kept = {id_: claim for id_, claim in earlier.items() if id_ not in self._part}
        claims = {id_: {**self._unmet(id_), **kept.get(id_, {}), **self._claims.get(id_, {})} for id_ in self._wanted}
        for id_, claim in claims.items():  # the wanted value may have changed since
            claim |= {key: self._unmet(id_)[key] for key in ("name", "unit", "wanted")}
            claim["met"] = claim["value"] is not None and self._wanted[id_].met_by(claim["value"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(list(claims.values()), indent=1) + "\n", encoding="utf-8")
        shown = [claims[id_] for id_ in self._wanted if id_ in self._part or id_ in self._claims]
        Console(width=150).print(_table(self._section, shown), soft_wrap=False)
        missed = [claim["id"] for claim in shown if not claim["met"]]
        if missed:
            print(f"{len(missed)} of {len(shown)} claims missed or missing: {', '.join(missed)}")
        return 1 if missed else 0

    def _known(self, id_: str) -> Wanted:
        if id_ not in self._wanted:
            known = ", ".join(self._wanted)
            raise ConfigError(f"claims: {self._section} has no claim {id_}; {WANTED.name} has {known}")
        return self._wanted[id_]

    def _unmet(self, id_: str) -> dict[str, Any]:
        wanted = self._wanted[id_]
        said = {"id": id_, "name": wanted.name, "value": None, "unit": wanted.unit, "wanted": wanted.wanted}
        return {**said, "met": False, "command": "", "n": 0, "samples": "", "baseline": ""}


def _table(section: str, claims: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=f"claims: {section}", title_justify="left")
    for column in ("claim", "value", "unit", "wanted", "met", "n", "baseline"):
        table.add_column(column, justify="right" if column in ("value", "n") else "left")
    for claim in claims:
        value = "missing" if claim["value"] is None else f"{claim['value']:.4g}"
        met = "yes" if claim["met"] else "NO"
        cells = (claim["name"], value, claim["unit"], claim["wanted"], met, str(claim["n"]), claim["baseline"])
        table.add_row(*cells)
    return table
