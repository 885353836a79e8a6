"""All-reduce of codes: gradients travel encoded, and every rank gets the same bits.

Block codecs: each rank encodes the whole array and sends every owner its shard; the owner adds up the codes in rank
order in float32, encodes the result once, and all ranks decode it. A contribution is encoded twice, never at every
hop. The lossless codec goes the same way, and nothing is lost. Sparse codecs: all ranks get all codes and add them up
in rank order. Between hosts of several ranks each, sums are exact inside a host, and encoded once between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hccl_py.buffers import Buffer, describe
from hccl_py.codecs import stored
from hccl_py.communicator import Communicator
from hccl_py.compressed_blocks import BlockExchange
from hccl_py.compressed_hosts import HostExchange
from hccl_py.compressed_lossless import LosslessExchange
from hccl_py.compressed_sparse import LowRankExchange, SparseExchange, SumExchange
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Codec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.lossless import Lossless, check_words
from hccl_py.compression.powersgd import PowerSgd
from hccl_py.compression.randomk import RandomK
from hccl_py.compression.span import Span, check_spans
from hccl_py.core.errors import ConfigError, TransportError
from hccl_py.core.types import ReduceOp

Exchange = HostExchange | BlockExchange | SparseExchange | SumExchange | LowRankExchange | LosslessExchange


class CompressedAllReduce:
    """All-reduce with one codec. All ranks must make it alike and call it in the same order, with the same arguments.

    Args:
        comm: the ranks.
        codec: or its text, "int8".
        seed: of the run, for stochastic rounding.
        feedback: error feedback of this rank; None: what a code loses is lost. May be shared by several codecs, not by
            calls at the same time.

    Raises:
        ConfigError: there is no such codec.
    """

    def __init__(
        self, comm: Communicator, codec: Codec | str, *, seed: int = 0, feedback: ErrorFeedback | None = None
    ) -> None:
        self.codec = parse_codec(codec) if isinstance(codec, str) else codec
        self._comm = comm
        self._exchange: Exchange
        parts = None if isinstance(self.codec, PowerSgd | RandomK) else comm.by_host()  # those sum exactly anyway
        if parts is not None:
            self._exchange = HostExchange(comm, parts, self.codec, seed, feedback)
        elif isinstance(self.codec, BlockCodec):
            self._exchange = BlockExchange(comm, self.codec, seed, feedback)
        elif isinstance(self.codec, Lossless):
            self._exchange = LosslessExchange(comm, self.codec, feedback)
        elif isinstance(self.codec, PowerSgd):
            self._exchange = LowRankExchange(comm, self.codec, seed, feedback)
        elif isinstance(self.codec, RandomK):
            self._exchange = SumExchange(comm, self.codec, seed, feedback)
        else:
            self._exchange = SparseExchange(comm, self.codec, seed, feedback)

    @property
    def sent_bytes(self) -> int:
        """What this rank has handed to the wire so far: frames, and sums where codes are summed, once for each hop.

        Between hosts of several ranks each: to other hosts only.
        """
        return self._exchange.sent_bytes

    def __call__(
        self,
        data: Any,
        out: Any = None,
        op: ReduceOp = ReduceOp.SUM,
        spans: Sequence[Span] | None = None,
        step: int = 0,
    ) -> Any:
        """Reduce ``data`` over all ranks; every rank gets the same bits in ``out`` (None: in place).

        The result is that of the codec: of "lossless" the sum in rank order, in float32, rounded once; between hosts
        of several ranks each, of the hosts' sums in the order of hosts.

        Args:
            data: contiguous float64 (not lossless), float32, float16 or bfloat16 in host memory.
            out: as ``data``.
            op: SUM or AVG.
            spans: the parameters in ``data``, in order (None: one). Codes never cross their bounds.
            step: of the training; with the seed it makes random numbers.

        Raises:
            ConfigError: an argument is wrong; nothing was sent.
            TransportError: a frame came damaged; the group is broken.
        """
        found, _ = stored(data)
        target = found if out is None else describe(out, "out", writable=True)
        if out is None:
            describe(data, "data", writable=True)
        if (target.size, target.dtype) != (found.size, found.dtype):
            raise ConfigError(f"out has {target.size} elements of {target.dtype.name}, data {found.size}")
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise ConfigError(f"compressed all_reduce adds up or averages; {ReduceOp(op).name} was asked for")
        if isinstance(self.codec, Lossless):
            check_words(found.dtype)
        layout = check_spans([Span(0, found.size)] if spans is None else spans, found.size)
        factor = 1.0 / self._comm.size if op == ReduceOp.AVG else 1.0
        if found.size == 0:
            self._comm.barrier()
        else:
            self._run(found, target, layout, factor, step)
        return data if out is None else out

    def _run(self, found: Buffer, target: Buffer, layout: tuple[Span, ...], factor: float, step: int) -> None:
        try:
            with np.errstate(all="ignore"):
                self._exchange.run(found, target, layout, factor, step)
        except TransportError as error:
            if type(error) is TransportError:  # ours, of a frame
                self._comm.engine.abort(str(error))  # the others would wait for what this rank does not send
            raise
