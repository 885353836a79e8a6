"""Overrides, link types and host types that build upon each other: what they change, and how they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import parse_topology
from hccl_py.topology.graph import Link, LinkKind, Topology
from hccl_py.topology.schema import OverrideEntry

BASE = """\
version: 1
link_types:
  eth: {kind: ethernet, bandwidth: 10GB/s, latency: 4us}
  far: {type: eth, latency: 1ms}
  wan: {type: far, bandwidth: 1GB/s}
host_types:
  small: {devices: {cpu0: {kind: cpu}}, nics: {nic0: }}
  large: {type: small, devices: {"cpu[0-1]": {kind: npu}}}
  huge: {type: large, devices: {cpu2: {kind: cpu}}}
hosts:
  h[0-3]: {type: small}
switches: {s: }
links:
  - {between: [h*/nic0, s], type: eth}
overrides:
"""


def read(override: str = "", base: str = BASE) -> Topology:
    text = f"{base}  - {{{override}}}\n" if override else base.replace("overrides:\n", "")
    return parse_topology(text, "o.yaml")


def link(topology: Topology, host: str = "h1") -> Link:
    return topology.link(f"{host}/nic0", "s")


UP: Callable[[Topology], object] = link
KEYS: dict[str, tuple[str, str, Callable[[Topology], object]]] = {
    "between": ("between: [h0/nic0, s], share: 50%", "between: [h1/nic0, s], share: 50%", UP),
    "from": ("from: h0/nic0, to: s, share: 50%", "from: h1/nic0, to: s, share: 50%", UP),
    "to": ("from: s, to: h0/nic0, share: 50%", "from: s, to: h1/nic0, share: 50%", lambda t: t.link("s", "h1/nic0")),
    "kind": ("between: [h1/nic0, s], share: 50%", "between: [h1/nic0, s], share: 50%, kind: roce", UP),
    "bandwidth": ("between: [h1/nic0, s], bandwidth: 1GB/s", "between: [h1/nic0, s], bandwidth: 2GB/s", UP),
    "latency": ("between: [h1/nic0, s], latency: 1us", "between: [h1/nic0, s], latency: 2us", UP),
    "share": ("between: [h1/nic0, s], share: 50%", "between: [h1/nic0, s], share: 25%", UP),
    "down": ("between: [h1/nic0, s], share: 50%", "between: [h1/nic0, s], down: true", lambda t: t.links_to("s")),
}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_an_override_changes_the_graph(key: str) -> None:
    before, after, ask = KEYS[key]
    assert ask(read(before)) != ask(read(after))


def test_no_key_is_left_out_of_the_test_above() -> None:
    assert set(KEYS) == {field.alias or name for name, field in OverrideEntry.model_fields.items()}


def test_an_override_changes_what_it_names_and_nothing_else() -> None:
    plain, changed = read(), read('between: ["h[1-2]/nic0", s], bandwidth: 3GB/s, latency: 9us, kind: roce')
    for host in ("h0", "h3"):
        assert link(plain, host) == link(changed, host)
    for host in ("h1", "h2"):
        assert link(changed, host) == Link(f"{host}/nic0", "s", LinkKind.ROCE, 3e9, 9e-6)
        assert changed.link("s", f"{host}/nic0").bandwidth_Bps == 3e9
    one_way = read("from: h1/nic0, to: s, share: 10%")
    assert link(one_way).bandwidth_Bps == 1e9
    assert one_way.link("s", "h1/nic0").bandwidth_Bps == 10e9


def test_overrides_add_up_in_order_and_variables_bind() -> None:
    both = read("between: [h*/nic0, s], share: 50%}\n  - {between: [s, h3/nic0], share: 50%")
    assert link(both, "h3").bandwidth_Bps == 2.5e9
    assert link(both, "h2").bandwidth_Bps == 5e9
    meshed = BASE.replace("links:\n", "links:\n  - {between: [h<i>/cpu0, h<i>/nic0], type: wan}\n")
    bound = read("between: [h<i>/cpu0, h<i>/nic0], share: 50%", meshed)
    assert {e.bandwidth_Bps for e in bound.links_from("h2/cpu0")} == {0.5e9}


def test_link_types_build_upon_each_other() -> None:
    topology = read(base=BASE.replace("s], type: eth", "s], type: wan, kind: roce"))
    assert link(topology) == Link("h1/nic0", "s", LinkKind.ROCE, 1e9, 1e-3)
    assert link(read()) == Link("h1/nic0", "s", LinkKind.ETHERNET, 10e9, 4e-6)


def test_host_types_build_upon_each_other() -> None:
    topology = read(base=BASE.replace("{type: small}\ns", "{type: huge}\ns"))
    assert topology.devices("h2") == ("h2/cpu0", "h2/cpu1", "h2/cpu2")
    assert [topology.node(name).device.value for name in topology.devices("h2")] == ["npu", "npu", "cpu"]  # type: ignore[union-attr]
    assert topology.nics("h2") == ("h2/nic0",)


BAD = [
    ("between: [h9/nic0, s], share: 50%", r"o.yaml:16: overrides\[0\]: no node matches 'h9/nic0'; did you mean"),
    ("between: [h0, s], share: 50%", r"o.yaml:16: overrides\[0\]: there is no link between 'h0' and 's' to change"),
    ("between: [h0/nic0, s]", r"o.yaml:16: overrides\[0\]: changes nothing: say 'bandwidth'"),
    ("between: [h0/nic0, s], down: true, share: 5%", r"nothing left for 'share' to change"),
    ("between: [h0/nic0, s], bandwidth: 1GB/s, share: 5%", r"say 'bandwidth' or 'share', not both"),
    ("between: [h0/nic0, s], share: 0.5", r"overrides\[0\].share: 0.5 has no unit: write a share as \"50%\""),
    ("between: [h0/nic0, s], share: 150%", r"a share is above 0% and at most 100%"),
    ("between: [h0/nic0, s], share: 0%", r"a share is above 0% and at most 100%"),
    ("between: [h0/nic0, s], bandwidth: 0GB/s", r"overrides\[0\].bandwidth: '0GB/s': a bandwidth must be above zero"),
    ("between: [h0/nic0, s], bandwith: 1GB/s", r"bandwith: unknown key; did you mean 'bandwidth'\?"),
    ("from: h0/nic0, share: 50%", r"say 'between: \[a, b\]'"),
]


@pytest.mark.parametrize(("override", "says"), BAD, ids=[says for _, says in BAD])
def test_overrides_that_make_no_sense_are_refused(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(override)


TYPES = [
    (
        "small: {",
        "small: {type: huge, ",
        r"o.yaml:8: host_types.large.type: a circle of types: small -> huge -> large -> small",
    ),
    ("small: {", "small: {type: small, ", r"o.yaml:7: host_types.small.type: a circle of types: small -> small"),
    ("eth: {", "eth: {type: wan, ", r"o.yaml:\d: link_types.\w+.type: a circle of types: "),
    (
        "type: large",
        "type: larg",
        r"o.yaml:9: host_types.huge.type: there is no host type 'larg'; did you mean 'large'",
    ),
    ("type: far", "type: fat", r"o.yaml:5: link_types.wan.type: there is no link type 'fat'; did you mean 'far'"),
    ("s], type: eth", "s], type: ehh", r"o.yaml:14: links\[0\].type: there is no link type 'ehh'; did you mean 'eth'"),
    (
        "kind: ethernet, ",
        "",
        r"o.yaml:14: links\[0\].kind: missing; link type 'eth' does not say it either \(keys here",
    ),
    ("s], type: eth", "s], latency: 1us", r"o.yaml:14: links\[0\].kind: missing \(keys here: type, kind, bandwidth"),
]


@pytest.mark.parametrize(("old", "new", "says"), TYPES, ids=[f"{new}" for _, new, _ in TYPES])
def test_types_that_are_not_there_or_run_in_a_circle(old: str, new: str, says: str) -> None:
    assert old in BASE
    with pytest.raises(ConfigError, match=says):
        read("between: [h0/nic0, s], share: 50%", BASE.replace(old, new, 1))
