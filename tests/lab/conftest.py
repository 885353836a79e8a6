"""Labs for the tests, or the reason why there is none.

Tests are no package: the modules of this folder become importable here, as lab, lab_transfer, lab_wire and lab_nodes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for _name, _file in (
    ("lab", "lab.py"),
    ("lab_transfer", "transfer.py"),
    ("lab_wire", "wire.py"),
    ("lab_nodes", "nodes.py"),
):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(_file))
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_name] = _module
    _spec.loader.exec_module(_module)

from lab import Lab  # noqa: E402
from lab_nodes import Nodes  # noqa: E402

from hccl_py.lab.kernel import obstacle  # noqa: E402


@pytest.fixture(scope="session")
def labs_are_possible() -> None:
    """Skip where this machine gives no network namespaces."""
    why = obstacle()
    if why is not None:
        pytest.skip(why)


@pytest.fixture(scope="session")
def lab(labs_are_possible: None) -> Iterator[Lab]:
    """Two hosts, links as fast as they go."""
    with Lab("hosts", 2) as made:
        for node in range(2):
            made.add_address(node, f"10.78.0.{node + 1}/24")
            made.add_address(node, f"fd78::{node + 1}/64")
        yield made


@pytest.fixture(scope="session")
def _agents(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(lab, tmp_path_factory.mktemp("lab") / "log") as made:
        yield made


@pytest.fixture
def nodes(_agents: Nodes, lab: Lab) -> Iterator[Nodes]:
    """Ranks on the two hosts. The links are whole and unshaped again afterwards."""
    yield _agents
    _agents.settle()
    for node in range(lab.nodes):
        lab.heal(node)
