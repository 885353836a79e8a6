"""mpi4py's forms of a buffer argument, made into arrays: ``data``, ``[data, count]``, ``[data, MPI.DOUBLE]``,
``[data, (count, displacement), type]``, and with counts and displacements by rank for the methods that end in v.

Counts and displacements are in elements of the datatype. Nothing is copied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from hccl_py.core.errors import ConfigError
from hccl_py.mpistyle.constants import BOTTOM, IN_PLACE
from hccl_py.mpistyle.datatype import Datatype, kind_of


class Blocks(NamedTuple):
    """A buffer of one block for each rank: ``counts[r]`` elements at ``displs[r]``."""

    flat: Any  # a contiguous array of one dimension
    counts: list[int]
    displs: list[int]

    @property
    def packed(self) -> bool:
        """True if the blocks follow each other from the beginning."""
        return self.displs == starts(self.counts)

    def block(self, rank: int) -> Any:
        """The block of one rank."""
        return self.flat[self.displs[rank] : self.displs[rank] + self.counts[rank]]


def starts(counts: Sequence[int]) -> list[int]:
    """Where each block begins if they follow each other."""
    return [0, *accumulate(counts)][: len(counts)]


def is_plain(spec: Any) -> bool:
    """True for an array that goes to the engine as it is: what it lacks, it says."""
    if type(spec) is np.ndarray:
        return bool(spec.dtype.kind != "c")
    return not (spec is None or isinstance(spec, (list, tuple)) or spec is IN_PLACE or spec is BOTTOM)


def array_of(spec: Any, what: str, blocks: int = 1) -> Any:
    """The array that a buffer argument means; what :func:`is_plain` calls plain, unchanged.

    Complex numbers become pairs of floats. Where a buffer holds ``blocks``, a count is that of each, as in MPI. Raises
    ConfigError where it is none of mpi4py's forms, or does not fit.
    """
    if is_plain(spec):
        return spec
    if isinstance(spec, (list, tuple)):
        data, counts, displs, kind = _taken_apart(spec, what)
        flat, kind = _flat(data, kind, what)
        if isinstance(displs, Sequence) or isinstance(counts, Sequence):
            if displs is None and isinstance(counts, Sequence) and len(counts) == 2:
                counts, displs = counts
            if not (_is_int(counts) and (displs is None or _is_int(displs))):
                raise ConfigError(f"{what}: one count and one displacement are wanted here, not {counts}, {displs}")
        begin = int(displs or 0)
        count = flat.size - begin if counts is None else int(counts) * blocks
        return _cut(flat, begin, count, what)
    flat, kind = _flat(spec, None, what)
    return _real(flat)


def blocks_of(spec: Any, ranks: int, what: str, counts: Any = None) -> Blocks:
    """The blocks that a buffer argument of a method ending in v means; ``counts``: where the argument has none."""
    displs = kind = None
    data = spec
    if isinstance(spec, (list, tuple)):
        data, found, displs, kind = _taken_apart(spec, what)
        counts = found if found is not None else counts
    flat, kind = _flat(data, kind, what)
    if counts is None:
        if flat.size % ranks:
            raise ConfigError(f"{what}: {flat.size} elements are not {ranks} equal blocks; give their counts")
        counts = flat.size // ranks
    sizes = [int(counts)] * ranks if _is_int(counts) else [int(count) for count in counts]
    places = starts(sizes) if displs is None else [int(place) for place in displs]
    if len(sizes) != ranks or len(places) != ranks:
        raise ConfigError(f"{what}: {len(sizes)} counts and {len(places)} displacements for {ranks} ranks")
    for begin, count in zip(places, sizes, strict=True):
        _cut(flat, begin, count, what)
    pair = 2 if flat.dtype.kind == "c" else 1
    return Blocks(_real(flat), [pair * count for count in sizes], [pair * place for place in places])


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, np.ndarray)


def _taken_apart(spec: Any, what: str) -> tuple[Any, Any, Any, np.dtype[Any] | None]:
    """Data, counts, displacements and type of a list."""
    rest = list(spec[1:])
    kind = kind_of(rest.pop()) if rest and isinstance(rest[-1], (Datatype, str)) else None
    if not spec or len(rest) > 2:
        raise ConfigError(f"{what}: not one of [data], [data, count], [data, count, displacement, datatype]")
    counts = rest[0] if rest else None
    displs = rest[1] if len(rest) == 2 else None
    if isinstance(counts, tuple) and len(counts) == 2 and displs is None and not _is_int(counts[0]):
        counts, displs = counts
    return spec[0], counts, displs, kind


def _flat(data: Any, kind: np.dtype[Any] | None, what: str) -> tuple[Any, np.dtype[Any]]:
    """The data as a contiguous array of one dimension, of the type that is asked for."""
    if data is IN_PLACE or data is BOTTOM:
        raise ConfigError(f"{what}: {data!r} cannot be used here")
    if data is None:
        flat = np.empty(0, np.uint8)
    elif isinstance(data, np.ndarray):
        if not (data.flags.c_contiguous or data.flags.f_contiguous):
            raise ConfigError(f"{what} is not contiguous; pass numpy.ascontiguousarray(...) and copy the result back")
        flat = data.reshape(-1, order="A")
    else:
        flat = _from_protocols(data, what)
    if kind is not None and kind != flat.dtype:
        whole = flat.nbytes // kind.itemsize * kind.itemsize
        flat = flat.view(np.uint8)[:whole].view(kind)
    return flat, flat.dtype


def _from_protocols(data: Any, what: str) -> Any:
    try:
        view = memoryview(data)
    except TypeError:
        pass
    else:
        if not view.c_contiguous:
            raise ConfigError(f"{what} is not contiguous")
        return np.asarray(view).reshape(-1) if view.nbytes else np.empty(0, view.format)
    try:
        array = np.from_dlpack(data)
    except (TypeError, AttributeError, BufferError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{what} is a {type(data).__name__}: neither the buffer protocol nor DLPack gives its memory ({error})"
        ) from None
    if not array.flags.c_contiguous:
        raise ConfigError(f"{what} is not contiguous")
    return array.reshape(-1)


def _cut(flat: Any, begin: int, count: int, what: str) -> Any:
    if begin < 0 or count < 0 or begin + count > flat.size:
        raise ConfigError(f"{what}: {count} elements from {begin} on are not within its {flat.size} elements")
    return _real(flat[begin : begin + count])


def _real(flat: Any) -> Any:
    """Complex numbers as pairs of floats."""
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def kind_in(spec: Any) -> Any:
    """The NumPy type of the elements of a buffer argument, where it says; complex stays complex."""
    if isinstance(spec, (list, tuple)):
        named = next((kind_of(word) for word in spec[1:] if isinstance(word, (Datatype, str))), None)
        return named if named is not None else kind_in(spec[0] if spec else None)
    kind = getattr(spec, "dtype", None)
    if kind is None and spec is not None and hasattr(spec, "typecode"):
        return np.dtype(spec.typecode)
    return kind
