"""Random graphs: hosts with devices, switches, directed links of any bandwidth; all devices reach each other."""

from __future__ import annotations

from hypothesis import strategies as st

from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 12, max_ranks: int = 6) -> tuple[Topology, Placement]:
    """A topology of at most ``max_nodes`` nodes besides the hosts, and its ranks in any order."""
    ranks = draw(st.integers(2, max_ranks))
    switches = draw(st.integers(0, max_nodes - ranks))
    hosts = draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    devices = [f"h{host}/gpu{i}" for i, host in enumerate(hosts)]
    nodes = [Node(f"h{host}", NodeKind.HOST) for host in sorted(set(hosts))]
    nodes += [Node(device, NodeKind.DEVICE, device=DeviceKind.GPU) for device in devices]
    inner = [f"s{i}" for i in range(switches)]
    nodes += [Node(switch, NodeKind.SWITCH) for switch in inner]
    names = draw(st.permutations(devices + inner))
    speeds = st.sampled_from([1e8, 2e8, 3e8, 5e8, 1e9, 7e9])
    ends = {(names[i], names[draw(st.integers(0, i - 1))]) for i in range(1, len(names))}  # a tree: it is connected
    ends |= {(b, a) for a, b in ends}
    more = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=8))
    ends |= {pair for pair in more if pair[0] != pair[1]}
    links = [Link(a, b, LinkKind.ETHERNET, draw(speeds), draw(st.sampled_from([0.0, 1e-6]))) for a, b in sorted(ends)]
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(draw(st.permutations(devices))))
