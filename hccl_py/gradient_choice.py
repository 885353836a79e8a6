"""AutoChoice: with what "auto" compresses. One codec a bucket at first; once gradients are known, one a parameter."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np

from hccl_py.buffers import describe
from hccl_py.codecs import decode_lossless, encode_values, whole
from hccl_py.communicator import Communicator
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.counter import Draw
from hccl_py.compression.lossless import Lossless
from hccl_py.compression.policy import (
    CodecSpeed,
    Decision,
    Layer,
    Link,
    choose,
    choose_per_layer,
    compressed_s,
    exact_s,
    expected_error,
)  # fmt: skip
from hccl_py.compression.span import Spans, placed
from hccl_py.core.types import ReduceOp

_log = logging.getLogger("hccl_py")
AUTO_CODECS = ("lossless", "bf16", "int8", "int4", "sign")
AUTO_ERROR = 0.2  # without a cluster file that says it: int4
LOOK_STEPS = 10  # whose gradients are looked at
EVERY_STEPS = 500  # so often
_LEAST_GAIN = 1.03  # of time, by choices for each parameter
_PROBE_ELEMENTS = 1 << 18  # 1 MiB


class AutoChoice:
    """Measures links and codecs at first use, and chooses; the same on all ranks, who call it in the same order.

    Args:
        comm: the ranks.
        most_error: the largest relative error of the gradient as a whole, before feedback.
    """

    def __init__(self, comm: Communicator, most_error: float) -> None:
        self._comm, self._most_error = comm, most_error
        self._measured: tuple[Link, dict[Codec, CodecSpeed]] | None = None
        self._decisions: dict[int, Decision] = {}
        self._layers: dict[int, Codec | None] = {}  # by parameter
        self._seen: dict[int, list[float]] = {}  # by parameter: elements, and squared norms of the steps looked at
        self._steps = 0

    @property
    def decisions(self) -> Mapping[int, Decision]:
        """By size of bucket."""
        return self._decisions

    @property
    def layers(self) -> Mapping[int, Codec | None]:
        """By parameter, where each has its own."""
        return self._layers

    def decision(self, num_bytes: int) -> Decision:
        """For a bucket of so many bytes of float32. Collective when first asked for a size."""
        if num_bytes not in self._decisions:
            link, speeds = self._known()
            decision = choose(num_bytes, self._comm.size, link, speeds, self._most_error)
            self._decisions[num_bytes] = decision
            self._say(decision.why)
        return self._decisions[num_bytes]

    def _known(self) -> tuple[Link, dict[Codec, CodecSpeed]]:
        if self._measured is None:
            self._measured = measure(self._comm, [parse_codec(text) for text in AUTO_CODECS])
        return self._measured

    def _say(self, why: str) -> None:
        if self._comm.rank == 0:
            _log.info("compression %s", why)

    def codecs(self, spans: Spans, wanted: Codec) -> list[Codec | None]:
        """Of each span, in a bucket that is compressed with ``wanted``."""
        return [self._layers.get(span.parameter, wanted) for span in spans]

    def observe(self, values: Array, spans: Spans) -> None:
        """Take the averages of a bucket's large parameters."""
        if self._steps % EVERY_STEPS < LOOK_STEPS:
            for place, span in placed(spans):
                seen = self._seen.setdefault(span.parameter, [0.0, 0.0])
                seen[0] = max(seen[0], float(span.offset + span.count))
                seen[1] += float(np.dot(values[place], values[place]))

    def end_step(self) -> None:
        """A step is over on all ranks; perhaps choose anew. Then a collective."""
        self._steps += 1
        if self._steps % EVERY_STEPS != LOOK_STEPS or not self._seen:
            return
        numbers = sorted(self._seen)
        squares = np.array([self._seen[number][1] for number in numbers])
        self._comm.broadcast(squares)  # equal but for the order in which ranks may have summed
        layers = [
            Layer(number, int(self._seen[number][0]), 2, math.sqrt(square))
            for number, square in zip(numbers, squares.tolist(), strict=True)
            if math.isfinite(square)
        ]
        self._seen = {}
        self._layers = self._choose(layers)

    def _choose(self, layers: Sequence[Layer]) -> dict[int, Codec | None]:
        """One error budget for all: what little there is of gradient in a parameter may lose more of it."""
        num_bytes = 4 * sum(layer.count for layer in layers)
        link, speeds = self._known()

        def seconds(of: Mapping[Codec, int]) -> float:
            return sum(compressed_s(codec, size, self._comm.size, link, speeds[codec]) for codec, size in of.items())

        uniform = choose(num_bytes, self._comm.size, link, speeds, self._most_error).codec if layers else None
        if uniform is None:
            return {}
        # Finer ones, should the budget ask for them, and coarser ones that would be faster.
        most_s, least_bits = seconds({uniform: num_bytes}), uniform.bits_per_element
        candidates = [
            codec for codec in speeds if codec.bits_per_element >= least_bits or seconds({codec: num_bytes}) < most_s
        ]
        plain_s = exact_s(num_bytes, self._comm.size, link)
        candidates = [codec for codec in candidates if not codec.exact or seconds({codec: num_bytes}) < plain_s]
        chosen = choose_per_layer(layers, candidates, self._most_error)
        sizes: dict[Codec, int] = {}
        exact_bytes = 0
        for layer in layers:
            codec = chosen[layer.parameter]
            if codec is None:
                exact_bytes += 4 * layer.count
            else:
                sizes[codec] = sizes.get(codec, 0) + 4 * layer.count
        exact = choose(exact_bytes, self._comm.size, link, speeds, 0.0).exact_s if exact_bytes else 0.0
        if (seconds(sizes) + exact) * _LEAST_GAIN >= most_s:
            return {}
        parts = ", ".join(f"{codec.text} {size / num_bytes:.0%}" for codec, size in sizes.items())
        error = math.sqrt(sum((expected_error(chosen[each.parameter]) * each.norm) ** 2 for each in layers))
        error /= math.sqrt(sum(each.norm**2 for each in layers)) or 1.0
        self._say(f"by parameter: {parts}; relative error {error:.3g} of at most {self._most_error:g}")
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """What was measured and chosen."""
        link, speeds = self._measured if self._measured is not None else (None, {})
        return {
            "size": self._comm.size,
            "link": list(astuple(link)) if link is not None else None,
            "speeds": {codec.text: list(astuple(speed)) for codec, speed in speeds.items()},
            "layers": {number: "" if codec is None else codec.text for number, codec in self._layers.items()},
            "seen": {number: list(seen) for number, seen in self._seen.items()},
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take :meth:`state_dict` up; in a world of another size all is measured anew."""
        self._decisions, self._layers, self._seen, self._steps, self._measured = {}, {}, {}, 0, None
        if state["size"] != self._comm.size or state["link"] is None:
            return
        speeds = {parse_codec(text): CodecSpeed(*speed) for text, speed in state["speeds"].items()}
        self._measured = Link(*state["link"]), speeds
        self._layers = {int(n): parse_codec(text) if text else None for n, text in state["layers"].items()}
        self._seen = {int(number): list(seen) for number, seen in state["seen"].items()}
        self._steps = int(state["steps"])


def budget(comm: Communicator) -> float:
    """What "auto" may bring into a gradient if the caller does not say."""
    engine = comm.engine
    return AUTO_ERROR if engine.env.topology is None else engine.planner.policy.compression_error


def measure(comm: Communicator, codecs: Sequence[Codec]) -> tuple[Link, dict[Codec, CodecSpeed]]:
    """The links by exact all_reduces of two sizes, the codecs on 1 MiB; the slowest rank counts. Collective."""
    parts = comm.by_host()
    times = _all_reduce_s(comm)
    times += _all_reduce_s(parts.local) if parts is not None else [0.0, 0.0]
    values = np.random.default_rng(0).standard_normal(_PROBE_ELEMENTS).astype(np.float32)
    out = np.zeros_like(values)
    for codec in codecs:
        code = encode_values(codec, values, Draw())
        times.append(_best(partial(encode_values, codec, values, Draw())))
        times.append(_best(partial(_decode_add, codec, code, out)))
    agreed = np.array(times)
    comm.all_reduce(agreed, op=ReduceOp.MAX)
    small_s, large_s, small_local_s, large_local_s, *coding = (float(value) for value in agreed)
    bandwidth_Bps = _bandwidth_Bps(comm.size, small_s, large_s)
    if parts is None:
        link = Link(bandwidth_Bps, small_s / 2)
    else:
        local_Bps = _bandwidth_Bps(parts.shards, small_local_s, large_local_s) if parts.shards > 1 else math.inf
        link = Link(bandwidth_Bps, small_s / 2, parts.shards, local_Bps)
    rates = [values.nbytes / max(each, 1e-9) for each in coding]
    return link, {codec: CodecSpeed(*rates[2 * k : 2 * k + 2]) for k, codec in enumerate(codecs)}


def _all_reduce_s(comm: Communicator) -> list[float]:
    times = []
    for elements in (256, 4 * _PROBE_ELEMENTS):
        array = np.zeros(elements, np.float32)
        comm.all_reduce(array)
        best = math.inf
        for _ in range(3):
            comm.barrier()
            begin = time.perf_counter()
            comm.all_reduce(array)
            best = min(best, time.perf_counter() - begin)
        times.append(best)
    return times


def _bandwidth_Bps(ranks: int, small_s: float, large_s: float) -> float:
    share = 2 * (ranks - 1) / ranks
    return max(share * 16 * _PROBE_ELEMENTS / max(large_s - small_s, 1e-9), 1.0)


def _decode_add(codec: Codec, code: Array, out: Array) -> None:
    if isinstance(codec, BlockCodec):
        whole(codec, len(out)).decode(code, describe(out, "out"), add=True)
    elif isinstance(codec, Lossless):
        decode_lossless(code, out, add=True)
    else:
        codec.decode_add(code, out)


def _best(call: Callable[[], object]) -> float:
    best = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best
