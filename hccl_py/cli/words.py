"""Words on the command line that several commands know."""

from __future__ import annotations

import difflib

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective


def collective_of(name: str) -> Collective:
    """The collective of that name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    known = {collective.name.lower(): collective for collective in Collective}
    word = name.lower().replace("-", "_")
    if word not in known:
        near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"--collective {name!r} is none of {', '.join(known)}{hint}")
    return known[word]
