"""Trees and pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import load_cluster
from hccl_py.topology.draw import draw
from hccl_py.topology.graph import Topology
from hccl_py.topology.layout import Layout, lay_out
from hccl_py.topology.shapes import full_mesh, many_hosts, ring, two_hosts
from hccl_py.topology.tree import compress, equal_hosts, tree_text

CONFIGS = Path(__file__).parents[3] / "cluster_configs"


def test_tree_says_what_is_there() -> None:
    topology, placement = two_hosts(2, interleaved=True)
    text = tree_text(topology, placement, "two hosts")
    assert text.splitlines()[0].startswith(
        "two hosts  2 hosts, 4 devices, 2 NICs, 1 switch, 16 directed links; digest "
    )
    for line in ("h[0-1]  2 equal hosts", "cpu     cpu[0-1]", "ranks   0,2 of h0", "ranks   1,3 of h1"):
        assert line in text
    assert "host <-> cpu[0-1]  memory  12GB/s    125ns  x 2" in text
    assert "h[0-1]/nic0 <-> network  ethernet  1.25GB/s  10us  x 2" in text


def test_tree_tells_directions_and_unequal_hosts_apart() -> None:
    topology, _ = two_hosts(1)
    slower = topology.with_estimates({("h0/cpu0", "h0"): (1e9, 1e-6)})
    assert equal_hosts(topology) == [("h0", "h1")]
    assert equal_hosts(slower) == [("h0",), ("h1",)]
    assert "h0 --> cpu0" not in tree_text(slower)
    assert "cpu0 --> host  memory  1GB/s" in tree_text(slower)
    assert "host --> cpu0  memory  12GB/s" in tree_text(slower)


def test_tree_of_many_equal_hosts_stays_short() -> None:
    topology, placement = many_hosts([2] * 100)
    text = tree_text(topology, placement)
    assert "ranks   14-15 of h7" in text and "h8" not in text
    assert "... and of 92 more hosts" in text
    assert len(text.splitlines()) < 20


def test_tree_keeps_to_its_width() -> None:
    topology, placement = many_hosts((3, 5, 2, 7))
    assert max(map(len, tree_text(topology, placement, width=60).splitlines())) <= 60


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["gpu2", "gpu0", "gpu1"], "gpu[0-2]"),
        (["gpu10", "gpu2"], "gpu[2,10]"),
        (["eth0"], "eth0"),
        (["n01", "n02", "n10"], "n[01-02,10]"),  # as cluster files would read it
        (["a/x0", "a/x1", "b/x0", "b/x1"], "a b/x[0-1]"),
        (["a", "a/x", "leaf"], "a leaf a/x"),
    ],
)
def test_names_are_compressed(names: list[str], text: str) -> None:
    assert compress(names) == text


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_are_written_in_each_format(tmp_path: Path, suffix: str) -> None:
    topology, placement = two_hosts(2)
    path = draw(topology, tmp_path / f"p.{suffix}", placement, "a title")
    head = path.read_bytes()[:400]
    assert {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix] in head


def test_a_picture_shows_nodes_ranks_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text as text
    topology, placement = two_hosts(1)
    topology = topology.with_estimates({("h0/nic0", "network"): (5e8, 1e-5)})
    text = draw(topology, tmp_path / "p.svg", placement, "a title").read_text()
    for word in ("a title", "h0", "h1", "cpu0", "nic0", "network", "rank 0", "rank 1", "500MB/s", "1.25GB/s", "memory"):
        assert f">{word}<" in text, word
    assert "ethernet  500MB/s  10us  (1 directed)" in text


def test_pictures_are_refused_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology, _ = ring(3)
    with pytest.raises(ConfigError, match=r"p.bmp: a picture ends in one of .png, .svg, .pdf"):
        draw(topology, tmp_path / "p.bmp")
    with pytest.raises(ConfigError, match="cannot write the picture: No such file"):
        draw(topology, tmp_path / "nowhere" / "p.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'hccl-py\[viz\]'"):
        draw(topology, tmp_path / "p.png")


def overlaps(topology: Topology, layout: Layout) -> list[tuple[str, str]]:
    boxes = [(name, x, y, Layout.node_width(topology.node(name))) for name, (x, y) in layout.at.items()]
    return [
        (a, b)
        for i, (a, ax, ay, aw) in enumerate(boxes)
        for b, bx, by, bw in boxes[i + 1 :]
        if abs(ax - bx) < (aw + bw) / 2 and abs(ay - by) < 0.42
    ]


SHAPES = {
    "ring": ring(8)[0],
    "mesh": full_mesh(5)[0],
    "uneven": many_hosts((1, 9, 2))[0],
    **{path.stem: load_cluster(path).topology for path in sorted(CONFIGS.glob("*.yaml"))},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_node_covers_another_and_all_are_within_their_host(shape: str) -> None:
    topology = SHAPES[shape]
    layout = lay_out(topology)
    assert overlaps(topology, layout) == []
    boxes = {box.label.partition("  ")[0]: box for box in layout.boxes}  # "node5  (and 10 equal hosts)"
    for name, (x, y) in layout.at.items():
        host = topology.host_of(name)
        if host:
            box, half = boxes[host], Layout.node_width(topology.node(name)) / 2
            assert box.left < x - half and x + half < box.left + box.width
            assert box.bottom < y < box.bottom + box.height


def test_the_overlap_check_finds_an_overlap() -> None:
    topology, _ = ring(2)
    assert overlaps(topology, Layout({"h0/gpu0": (0.0, 0.0), "h0/gpu1": (0.5, 0.1)})) == [("h0/gpu0", "h0/gpu1")]


def test_of_many_equal_hosts_only_the_first_are_drawn() -> None:
    layout = lay_out(many_hosts([2] * 40)[0])
    assert len(layout.boxes) == 6
    assert layout.boxes[-1].label == "h5  (and 34 equal hosts)"
    assert "h6/cpu0" not in layout.at
