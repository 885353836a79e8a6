"""A topology as a tree in the terminal: equal hosts once, runs of names as ranges, equal links in one line."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hccl_py.core.units import format_bandwidth, format_seconds
from hccl_py.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.node import HOST_WORD, natural_key
from hccl_py.topology.placement import Placement
from hccl_py.topology.ranges import fold

_MAX_RANK_ROWS = 8  # of one group of equal hosts

# (names with # for numbers, the same in both directions, figures)
_Row = tuple[tuple[str, str], bool, tuple[LinkKind, float, float]]


def tree_text(topology: Topology, placement: Placement | None = None, title: str = "", width: int = 120) -> str:
    """The tree as plain text of at most ``width`` columns."""
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(tree(topology, placement, title))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def tree(topology: Topology, placement: Placement | None = None, title: str = "") -> Tree:
    """The tree for a rich console."""
    root = Tree(Text.assemble((title or "topology", "bold"), f"  {summary(topology)}"))
    for group in equal_hosts(topology):
        _add_host(root, topology, group, placement)
    switches, outer = topology.nodes_within(""), topology.links_within("")
    if switches or outer:
        branch = root.add(Text("network", "bold"))
        if switches:
            branch.add(Text.assemble("switch  ", compress(node.name for node in switches)))
        _add_links(branch, outer, "")
    return root


def summary(topology: Topology) -> str:
    """One line: how many of each, and the beginning of the digest."""
    switches = sum(node.kind is NodeKind.SWITCH for node in topology.nodes)
    counts = (
        (len(topology.hosts()), "host"),
        (len(topology.devices()), "device"),
        (len(topology.nics()), "NIC"),
        (switches, "switch"),
        (len(topology.links), "directed link"),
    )
    words = [f"{n} {word}{'' if n == 1 else 'es' if word == 'switch' else 's'}" for n, word in counts if n]
    return f"{', '.join(words)}; digest {topology.digest()[:12]}"


def equal_hosts(topology: Topology) -> list[tuple[str, ...]]:
    """Hosts grouped by equal insides, in natural order of the first of each group."""
    groups: dict[object, list[str]] = {}
    for host in topology.hosts():
        nodes = tuple(
            (n.local, n.kind, n.device, n.numa.rpartition("/")[2], n.cpus, n.interface)
            for n in topology.nodes_within(host)
            if n.kind is not NodeKind.HOST
        )
        links = tuple(
            (_local(e.src, host), _local(e.dst, host), e.kind, e.bandwidth_Bps, e.latency_s)
            for e in topology.links_within(host)
        )
        groups.setdefault((nodes, links), []).append(host)
    return [tuple(group) for group in groups.values()]


def compress(names: Iterable[str]) -> str:
    """Names with runs of numbers as ranges, as cluster files write them: ``gpu[0-7] mlx0``."""
    names = set(names)
    if any("/" in name for name in names):
        locals_of: dict[str, set[str]] = {}
        for name in names:
            locals_of.setdefault(name.rpartition("/")[0], set()).add(name.rpartition("/")[2])
        hosts_of: dict[str, set[str]] = {}
        for host, locals_ in locals_of.items():
            hosts_of.setdefault(compress(locals_), set()).add(host)
        words = [f"{compress(hosts)}/{text}" if hosts != {""} else text for text, hosts in hosts_of.items()]
        return " ".join(sorted(words, key=natural_key))
    return " ".join(fold(names))


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,7`` for ascending numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _add_host(root: Tree, topology: Topology, group: tuple[str, ...], placement: Placement | None) -> None:
    host = group[0]
    equal = f"  {len(group)} equal hosts" if len(group) > 1 else ""
    branch = root.add(Text.assemble((compress(group), "bold"), equal))
    inside = [node for node in topology.nodes_within(host) if node.kind is not NodeKind.HOST]
    kinds: dict[str, dict[str, list[Node]]] = {}
    for node in inside:
        where = f"at {node.numa.rpartition('/')[2]}" if node.numa else f"{node.cpus} CPUs" if node.cpus else ""
        word = node.device.value if node.device else node.kind.value
        kinds.setdefault(word, {}).setdefault(where, []).append(node)
    for word, places in kinds.items():
        parts = [
            f"{compress(n.local for n in nodes)}{f' ({where})' if where else ''}" for where, nodes in places.items()
        ]
        branch.add(Text.assemble((f"{word:<8}", "cyan"), ", ".join(parts)))
    if placement is not None:
        ranks: dict[str, list[int]] = {}
        for rank, device in enumerate(placement.devices):
            ranks.setdefault(topology.host_of(device), []).append(rank)
        with_ranks = [name for name in group if name in ranks]
        for name in with_ranks[:_MAX_RANK_ROWS]:
            of = f" of {name}" if len(group) > 1 else ""
            branch.add(Text.assemble(("ranks   ", "cyan"), _ranges(ranks[name]), of))
        if len(with_ranks) > _MAX_RANK_ROWS:
            branch.add(Text(f"        ... and of {len(with_ranks) - _MAX_RANK_ROWS} more hosts"))
    _add_links(branch, topology.links_within(host), host)


def _add_links(branch: Tree, links: Iterable[Link], host: str) -> None:
    """One row for each group of links with equal figures between nodes whose names differ only in their numbers."""
    left = {(link.src, link.dst): link for link in links}
    rows: dict[_Row, list[tuple[str, str]]] = {}
    for (src, dst), link in list(left.items()):
        if (src, dst) not in left:
            continue
        back = left.get((dst, src))
        both = back is not None and back.bandwidth_Bps == link.bandwidth_Bps and back.latency_s == link.latency_s
        if both:
            del left[dst, src]
        a, b = _local(src, host), _local(dst, host)
        stems = (re.sub(r"\d+", "#", a), re.sub(r"\d+", "#", b))
        figures = (link.kind, link.bandwidth_Bps, link.latency_s)
        rows.setdefault((stems, both, figures), []).append((a, b))
    table = Table.grid(padding=(0, 2))
    for (stems, both, (kind, bandwidth_Bps, latency_s)), ends in rows.items():
        if stems[0] == stems[1]:
            text = f"among {compress(name for pair in ends for name in pair)}{'' if both else ' (one way)'}"
        else:
            a, b = compress(end[0] for end in ends), compress(end[1] for end in ends)
            text = f"{a} {'<->' if both else '-->'} {b}"
        count = f"x {len(ends)}" if len(ends) > 1 else ""
        table.add_row(
            Text(text),
            Text(kind.name.lower(), "cyan"),
            format_bandwidth(bandwidth_Bps),
            format_seconds(latency_s),
            count,
        )
    if rows:
        branch.add(table)


def _local(name: str, host: str) -> str:
    if not host:
        return name
    return HOST_WORD if name == host else name.rpartition("/")[2]
