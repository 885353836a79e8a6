"""All codecs, and how users name them: "int8", "topk:0.01"."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from hccl_py.compression.bf16 import Bf16
from hccl_py.compression.blocksparse import BlockSparse
from hccl_py.compression.codec import Codec, CodecId
from hccl_py.compression.fp8 import fp8_e4m3, fp8_e5m2
from hccl_py.compression.fp16 import Fp16
from hccl_py.compression.int4 import Int4
from hccl_py.compression.int8 import Int8
from hccl_py.compression.lossless import Lossless
from hccl_py.compression.powersgd import PowerSgd
from hccl_py.compression.randomk import RandomK
from hccl_py.compression.sign import Sign
from hccl_py.compression.threshold import Threshold
from hccl_py.compression.topk import TopK
from hccl_py.core.errors import ConfigError


def builtin_codecs() -> dict[str, Callable[..., Codec]]:
    """Name to what makes the codec, of a number where it takes one."""
    return {
        "fp16": Fp16,
        "bf16": Bf16,
        "fp8_e4m3": fp8_e4m3,
        "fp8_e5m2": fp8_e5m2,
        "int8": Int8,
        "int4": Int4,
        "sign": Sign,
        "topk": TopK,
        "randomk": RandomK,
        "threshold": Threshold,
        "blocksparse": BlockSparse,
        "powersgd": PowerSgd,
        "lossless": Lossless,
    }


def codec_of(id: CodecId, number: float) -> Codec:
    """The codec that a frame names. Raises ConfigError where the number is wrong."""
    name = id.name.lower()
    return builtin_codecs()[name](number) if name in _WITH_NUMBER else builtin_codecs()[name]()


_WITH_NUMBER = ("topk", "randomk", "threshold", "blocksparse", "powersgd")


def parse_codec(text: str) -> Codec:
    """The codec that a text names.

    Raises:
        ConfigError: there is none of this name, or the number after the colon is wrong.
    """
    name, colon, number = text.partition(":")
    known = builtin_codecs()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f'; do you mean "{near[0]}"?' if near else ""
        raise ConfigError(f'codec "{text}": there are {", ".join(known)}{hint}')
    if name not in _WITH_NUMBER:
        if colon:
            raise ConfigError(f'codec "{text}": {name} takes no number')
        return known[name]()
    if not colon:
        if name == "threshold":
            raise ConfigError('codec "threshold": say which, as "threshold:0.001"')
        return known[name]()
    try:
        value = float(number)
    except ValueError:
        raise ConfigError(f'codec "{text}": "{number}" is not a number') from None
    return known[name](value)
