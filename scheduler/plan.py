"""Plan: the verified programs of all ranks for one collective, world and root. A plan that exists has been verified."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.explain import explain
from hccl_py.scheduler.lending import lends, with_lending
from hccl_py.scheduler.program import Lends, Program
from hccl_py.scheduler.verify import Certificate, verify

ParamValue: TypeAlias = int | str | tuple[int, ...] | tuple[tuple[int, ...], ...]
Params: TypeAlias = tuple[tuple[str, ParamValue], ...]  # sorted by name

_MAGIC = b"hccl_py plan 1\n"
_LENGTH = struct.Struct("<I")
_TOO_LONG = ("down", "up")  # whole trees: parameters that a name leaves out


@dataclass(frozen=True)
class Plan:
    """What every rank does, verified by the constructor; there is no other way to make one (copies and pickles
    included).

    Args:
        algorithm: name of the algorithm that wrote it.
        params: its parameters, for people and for the digest.
        programs: of ranks 0 to world - 1, as the algorithm wrote them.

    Attributes:
        order: found by the verifier, never claimed.
        uneven: True if it also serves blocks of different sizes.
        digest: SHA-256 of :meth:`to_bytes`, 32 bytes.

    Raises:
        PlanError: the programs do not compute the collective; names rank, step and reason.
    """

    algorithm: str
    params: Params
    programs: tuple[Program, ...] = field(repr=False)
    order: Order = field(init=False, compare=False)
    uneven: bool = field(init=False, compare=False)
    digest: bytes = field(init=False, compare=False)
    certificate: Certificate = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        neutral = tuple(replace(p, order=Order.FREE, digest=0, lends=Lends.NEVER) for p in self.programs)
        object.__setattr__(self, "programs", neutral)
        object.__setattr__(self, "params", tuple(sorted(self.params)))
        try:
            certificate = verify(neutral)
        except PlanError as error:
            what = neutral[0].collective.name if neutral else "nothing"
            raise PlanError(f"plan {self.algorithm!r} for {what}: {error}") from None
        object.__setattr__(self, "certificate", certificate)
        object.__setattr__(self, "order", certificate.order)
        object.__setattr__(self, "uneven", certificate.uneven)
        object.__setattr__(self, "digest", hashlib.sha256(self.to_bytes()).digest())

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.algorithm, self.params, self.programs)

    @property
    def collective(self) -> Collective:
        """What it computes."""
        return self.programs[0].collective

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.programs)

    @property
    def root(self) -> int:
        """The rank with a part of its own; 0 where there is none."""
        return self.programs[0].root

    @property
    def slots_per_block(self) -> int:
        """Slots that each block is cut into."""
        return self.programs[0].slots_per_block

    @property
    def channels(self) -> int:
        """Parallel channels from one rank to another."""
        return self.programs[0].channels

    @property
    def one_round(self) -> bool:
        """True if ranks only read each other's INPUT, so that shared slots can replace messages."""
        return self.programs[0].one_round

    @property
    def shared_fold(self) -> bool:
        """True if ranks of one host may fold a share each over shared memory, instead of sending messages."""
        return self.programs[0].shared_fold

    @cached_property
    def lends(self) -> Lends:
        """Whether the plan also ends where channels hold nothing, so that messages may stay in the sender's memory."""
        return lends(self.certificate.graph)

    @property
    def rank_classes(self) -> None:
        """None: nothing is known of ranks that behave alike (template.py knows it)."""
        return None

    @property
    def name(self) -> str:
        """Algorithm and parameters in short: "direct rounds=2"."""
        return short_name(self.algorithm, self.params)

    def program(self, rank: int) -> Program:
        """The program of one rank, with order and digest as the engine needs them."""
        if not 0 <= rank < self.world:
            raise PlanError(f"plan {self.algorithm!r} is for ranks 0 to {self.world - 1}, there is no rank {rank}")
        program = with_lending(self.certificate.graph, self.lends, rank)
        return replace(program, order=self.order, digest=int.from_bytes(self.digest[:8], "little"))

    def to_bytes(self) -> bytes:
        """Canonical bytes: equal plans, and only they, have equal bytes."""
        head = json.dumps([self.algorithm, self.params], separators=(",", ":")).encode()
        parts = [_MAGIC]
        for part in (head, *(program.to_bytes() for program in self.programs)):
            parts += [_LENGTH.pack(len(part)), part]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """The plan with these bytes, verified again.

        Raises:
            PlanError: not the bytes of a plan, or of a wrong one.
        """
        if not data.startswith(_MAGIC):
            raise PlanError(f"these {len(data)} bytes are no plan of this version")
        parts: list[bytes] = []
        at = len(_MAGIC)
        while at < len(data):
            end = at + _LENGTH.size
            length = _LENGTH.unpack(data[at:end])[0] if end <= len(data) else -1
            if length < 0 or end + length > len(data):
                raise PlanError(f"the bytes of a plan are cut off: part {len(parts)} does not fit in {len(data)} bytes")
            parts.append(data[end : end + length])
            at = end + length
        try:
            algorithm, params = json.loads(parts[0])
            pairs = tuple((str(key), _tuples(value)) for key, value in params)
        except (IndexError, ValueError, TypeError) as error:
            raise PlanError(f"the head of a plan cannot be read: {error}") from None
        return cls(algorithm, pairs, tuple(Program.from_bytes(part) for part in parts[1:]))

    def explain(self) -> str:
        """The plan in words: rounds, messages, bytes per rank as a share of a block, order, one rank's steps."""
        return explain(self.name, self.certificate, self.digest)


def short_name(algorithm: str, params: Params) -> str:
    """Algorithm and parameters in short."""
    words = (f"{key}={_short(value)}" for key, value in params if key not in _TOO_LONG)
    return " ".join([algorithm, *words])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _short(value: ParamValue) -> str:
    """Groups by their sizes, a long order by its beginning: a name, not a description."""
    if not isinstance(value, tuple):
        return str(value)
    if value and all(isinstance(item, tuple) for item in value):
        sizes = [len(item) for item in value if isinstance(item, tuple)]
        if len(sizes) > 4 and len(set(sizes)) == 1:
            return f"{len(sizes)}x{sizes[0]}"
        return "+".join(map(str, sizes))
    return "/".join(map(str, value[:8])) + ("/.." if len(value) > 8 else "")
