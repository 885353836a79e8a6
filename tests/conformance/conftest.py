"""Makes ranks.py and oracle.py importable as conformance_ranks and conformance_oracle; says what was covered."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for _name in ("ranks", "oracle"):
    if f"conformance_{_name}" not in sys.modules:
        _spec = importlib.util.spec_from_file_location(f"conformance_{_name}", Path(__file__).with_name(f"{_name}.py"))
        assert _spec is not None and _spec.loader is not None
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[f"conformance_{_name}"] = _module
        _spec.loader.exec_module(_module)

from conformance_ranks import TRANSPORTS, Ranks  # noqa: E402

from hccl_py.core.errors import TransportUnavailableError  # noqa: E402

_CALLS = pytest.StashKey[dict[str, int]]()  # by transport: calls of the matrix that were checked
_MISSING = pytest.StashKey[dict[str, str]]()  # by transport: why it is not there


class Groups:
    """Connected groups by transport and world, made when first asked for, closed with the module."""

    def __init__(self, config: pytest.Config) -> None:
        self._groups: dict[tuple[str, int], Ranks] = {}
        self._calls = config.stash.setdefault(_CALLS, {})
        self._missing = config.stash.setdefault(_MISSING, {})

    def get(self, transport: str, world: int) -> Ranks:
        """The group; skips the test where the transport is not available here."""
        if transport in self._missing:
            pytest.skip(f"{transport}: {self._missing[transport]}")
        if (transport, world) not in self._groups:
            try:
                self._groups[transport, world] = Ranks(transport, world)
            except TransportUnavailableError as error:
                self._missing[transport] = f"{error}"
                pytest.skip(f"{transport}: {error}")
        return self._groups[transport, world]

    def covered(self, transport: str, calls: int) -> None:
        """Count calls for the summary."""
        self._calls[transport] = self._calls.get(transport, 0) + calls

    def close(self) -> None:
        """End all groups."""
        for ranks in self._groups.values():
            ranks.close()


@pytest.fixture(scope="module")
def groups(pytestconfig: pytest.Config) -> Iterator[Groups]:
    """``groups.get(transport, world)``: shared by the tests of a module, which must leave them usable."""
    groups = Groups(pytestconfig)
    yield groups
    groups.close()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport in turn."""
    return str(request.param)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line: which transports the matrix covered, and which it did not, and why."""
    calls = config.stash.get(_CALLS, {})
    if not calls:
        return
    words = [f"{name} ({calls[name]} calls)" if name in calls else f"not {name}" for name in TRANSPORTS]
    words += [f"{name} is unavailable: {why}" for name, why in config.stash.get(_MISSING, {}).items()]
    terminalreporter.write_line("conformance matrix covered " + "; ".join(words))
