"""Update: measured figures go into a cluster file as overrides; all else in it, comments too, stays as it is."""

from __future__ import annotations

import io
from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from hccl_py.core.units import format_bandwidth, format_seconds


def with_overrides(text: str, figures: Mapping[tuple[str, str], tuple[float, float]]) -> str:
    """``text`` of a valid cluster file with an override for each link.

    Args:
        text: the file.
        figures: ``{(src, dst): (bandwidth_Bps, latency_s)}``; equal figures in both directions become ``between``.
    """
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    top = yaml.load(text)
    overrides = top.setdefault("overrides", CommentedSeq())
    left = dict(figures)
    while left:
        (src, dst), values = next(iter(left.items()))
        del left[src, dst]
        entry = CommentedMap()
        if left.get((dst, src)) == values:
            del left[dst, src]
            entry["between"] = [src, dst]
        else:
            entry["from"], entry["to"] = src, dst
        entry["bandwidth"] = format_bandwidth(values[0])
        entry["latency"] = format_seconds(values[1])
        entry.fa.set_flow_style()
        overrides.append(entry)
    stream = io.StringIO()
    yaml.dump(top, stream)
    return stream.getvalue()
