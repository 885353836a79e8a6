"""``nvidia-smi topo -m``: a matrix of how GPUs and NICs of one host reach each other."""

from __future__ import annotations

import re

from hccl_py.topology.graph import DeviceKind, LinkKind, NodeKind, Topology
from hccl_py.topology.importers.importer import NVLINK_BPS, PCIE_NOTE, Sketch, local_word

_NAME = re.compile(r"(GPU|NIC)\d+|mlx\d+_\d+|[a-z]+\d*_?\d*")
_RELATION = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+")
_MOST_LINKS = 18  # of one GPU (H100); more in a row of the matrix than this can only be an NVSwitch


def read_nvidia_smi(text: str, file: str, host: str) -> tuple[Topology, list[str]]:
    """The host, and notes on what was assumed.

    Raises:
        ConfigError: not such a matrix; says file:line.
    """
    sketch = Sketch(file)
    names, rows, numas, legend = _matrix(text, sketch)
    host = sketch.host(host, 1)
    full: dict[str, str] = {}
    for name in names:
        if name.startswith("GPU"):
            full[name] = f"{host}/gpu{name[3:]}"
        else:
            full[name] = f"{host}/{local_word(legend.get(name, name))}"
    numa_of = {name: numas.get(name, "") for name in names}
    for name in names:  # a NIC's row has no NUMA column: take that of a GPU near it
        near = [other for other in names if rows[name][other] in ("PIX", "PXB", "PHB", "NODE") and numa_of[other]]
        numa_of[name] = numa_of[name] or (numa_of[near[0]] if near else "")
    known = sorted({numa for numa in numa_of.values() if numa}, key=int) or ["0"]
    for index, numa in enumerate(known):
        sketch.node(f"{host}/numa{numa}", NodeKind.NUMA, 1)
        for other in known[:index]:
            sketch.wire(f"{host}/numa{numa}", f"{host}/numa{other}", LinkKind.SOCKET, 1)
    switch_of = _switches(names, rows)
    for name in names:
        numa = f"{host}/numa{numa_of[name] or known[0]}"
        if name.startswith("GPU"):
            sketch.node(full[name], NodeKind.DEVICE, 1, DeviceKind.GPU, numa=numa)
        else:
            sketch.node(full[name], NodeKind.NIC, 1, numa=numa, interface=legend.get(name, name))
            network = sketch.node("network", NodeKind.SWITCH, 1)
            sketch.wire(full[name], network, LinkKind.INFINIBAND, 1)
            sketch.note("NICs: no speed is given, 100 Gbit/s InfiniBand on one switch was assumed")
        at = numa
        if name in switch_of:
            at = f"{host}/pcie{switch_of[name]}"
            if at not in sketch:
                sketch.wire(sketch.node(at, NodeKind.SWITCH, 1), numa, LinkKind.PCIE, 1)
        sketch.wire(full[name], at, LinkKind.PCIE, 1)
    sketch.note(PCIE_NOTE)
    _nvlinks(sketch, names, rows, full, host)
    return sketch.topology(), sketch.notes


def _matrix(text: str, sketch: Sketch) -> tuple[list[str], dict[str, dict[str, str]], dict[str, str], dict[str, str]]:
    """Names, relation of each to each, NUMA node of those that have one, and what NIC numbers are called."""
    names: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    numas: dict[str, str] = {}
    legend: dict[str, str] = {}
    columns: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in re.split(r"\t|  +", re.sub(r"\x1b\[[0-9;]*m", "", line)) if word.strip()]
        if not names:
            columns = words
            names = [word for word in words if _NAME.fullmatch(word)]
            names = names if "GPU0" in names else []
            continue
        if words and words[0] in names and words[0] not in rows and len(words) > 1:
            relations = words[1 : len(names) + 1]
            if len(relations) < len(names) or not all(_RELATION.fullmatch(word) for word in relations):
                raise sketch.error(
                    number, f"{words[0]}: {len(names)} of X, SYS, NODE, PHB, PXB, PIX, NV# were expected"
                )
            rows[words[0]] = dict(zip(names, relations, strict=True))
            rest = dict(zip(columns[len(names) :], words[len(names) + 1 :], strict=False))
            numa = rest.get("NUMA Affinity", "").split("-")[0].split(",")[0]
            if numa.isdigit():
                numas[words[0]] = numa
        elif match := re.fullmatch(r"\s*(NIC\d+):\s*(\S+)\s*", line):
            legend[match[1]] = match[2]
    if not names:
        raise sketch.error(1, "no line names the columns GPU0, ...: is this the output of `nvidia-smi topo -m`?")
    for name in names:
        if name not in rows:
            raise sketch.error(1, f"{name} has a column, but no row")
    return names, rows, numas, legend


def _switches(names: list[str], rows: dict[str, dict[str, str]]) -> dict[str, int]:
    """The PCIe switch of those that share one (PIX, PXB) with another."""
    switch_of: dict[str, int] = {}
    count = 0
    for name in names:
        group = [other for other in names if rows[name][other] in ("PIX", "PXB")]
        if not group or name in switch_of:
            continue
        found = [switch_of[other] for other in group if other in switch_of]
        number = found[0] if found else count
        count += not found
        for other in (name, *group):
            switch_of.setdefault(other, number)
    return switch_of


def _nvlinks(
    sketch: Sketch, names: list[str], rows: dict[str, dict[str, str]], full: dict[str, str], host: str
) -> None:
    pairs = {(a, b): int(rows[a][b][2:]) for a in names for b in names if rows[a][b].startswith("NV") and a < b}
    if not pairs:
        return
    sketch.note(f"NVLink: the generation is not given, {NVLINK_BPS[3] / 1e9:g} GB/s a link was assumed")
    gpus = sorted({name for pair in pairs for name in pair})
    counts = set(pairs.values())
    everyone = len(pairs) == len(gpus) * (len(gpus) - 1) // 2
    if everyone and len(counts) == 1 and min(counts) * (len(gpus) - 1) > _MOST_LINKS:
        switch = sketch.node(f"{host}/nvswitch", NodeKind.SWITCH, 1)
        for gpu in gpus:
            sketch.wire(full[gpu], switch, LinkKind.NVLINK, 1, min(counts) * NVLINK_BPS[3])
        return
    for (a, b), count in pairs.items():
        sketch.wire(full[a], full[b], LinkKind.NVLINK, 1, count * NVLINK_BPS[3])
