"""Policy: what the operator of a cluster wants of the plans, whatever the model says is fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective
from hccl_py.topology.document import short
from hccl_py.topology.fields import Entry, Share, Size
from hccl_py.topology.node import did_you_mean


def _collective(value: object) -> object:
    words = {collective.name.lower(): collective for collective in Collective}
    if isinstance(value, str) and value in words:
        return words[value]
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    raise ConfigError(f"{short(value)} is not one of {', '.join(words)}{near}")


def _algorithm(value: object) -> object:
    if isinstance(value, str) and value.replace("_", "").isalnum() and value.islower():
        return value
    raise ConfigError(f"{short(value)} is not the name of an algorithm: `hccl-py plan CLUSTER.yaml` lists them")


KindOfCollective = Annotated[
    Collective, BeforeValidator(_collective), WithJsonSchema({"enum": [c.name.lower() for c in Collective]})
]


class AlgorithmEntry(Entry):
    """Blocks of up to ``upto`` bytes (any size, if it is not there) of ``collective`` (of all) use ``algorithm``."""

    algorithm: Annotated[str, BeforeValidator(_algorithm), WithJsonSchema({"type": "string"})]
    collective: KindOfCollective | None = None
    upto: Size | None = None


class PolicyEntry(Entry):
    """``algorithms``: forced by size, the first that fits; ``deterministic``: only canonical plans.

    ``compression``: the largest relative error that lossy compression may bring into a result; without it none is
    allowed. ``nics``: patterns of the NICs that may be used; the others are not part of the graph.
    """

    algorithms: list[AlgorithmEntry] = Field(default_factory=list)
    deterministic: bool = False
    compression: Share | None = None
    nics: Annotated[list[str], Field(min_length=1)] | None = None


@dataclass(frozen=True)
class ForcedAlgorithm:
    """Blocks of up to ``upto_bytes`` use ``algorithm``; None: any collective, any size."""

    algorithm: str
    collective: Collective | None = None
    upto_bytes: int | None = None


@dataclass(frozen=True)
class Policy:
    """What a cluster file's ``policy`` says.

    Attributes:
        algorithms: in order; the first that fits a collective and a size is forced.
        deterministic: only canonical plans.
        compression_error: largest relative error by lossy compression; 0: no lossy compression.
        nics: full names of the NICs that may be used; None: all.
    """

    algorithms: tuple[ForcedAlgorithm, ...] = ()
    deterministic: bool = False
    compression_error: float = 0.0
    nics: tuple[str, ...] | None = None

    def forced(self, collective: Collective) -> tuple[tuple[int | None, str], ...]:
        """What is forced for ``collective``: (up to how many bytes, algorithm), ascending; None, if last, is any size.

        Sizes above the last limit are free.
        """
        found: list[tuple[int | None, str]] = []
        for rule in self.algorithms:
            if rule.collective not in (None, collective):
                continue
            last = found[-1][0] if found else -1
            if last is not None and (rule.upto_bytes is None or rule.upto_bytes > last):
                found.append((rule.upto_bytes, rule.algorithm))
        return tuple(found)
