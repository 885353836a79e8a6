"""The tuple of transports, look-ups by name, and the survey that `hccl-py doctor` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.transports import loopback, registry
from hccl_py.transports.base import Availability

NATIVE = Path(__file__).parents[3] / "native" / "src" / "transports"


def test_names_are_unique_and_have_a_native_file() -> None:
    names = [spec.name for spec in registry.builtin_transports()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not (NATIVE / f"{name}.cpp").is_file()] == []


def test_options_of_all_transports_are_distinct_keywords_with_the_transports_name() -> None:
    seen: set[str] = set()
    for spec in registry.builtin_transports():
        keywords = spec.config_type().keywords()
        assert all(key.startswith(f"{spec.name}_") for key in keywords)
        assert seen.isdisjoint(keywords)
        seen |= keywords.keys()
    assert seen == {
        "shm_ring_bytes",
        "shm_slot_bytes",
        "shm_shared_from_bytes",
        "shm_private_from_bytes",
        "tcp_interfaces",
        "tcp_port_range",
        "tcp_connections",
        "tcp_family",
        "tcp_congestion",
    }


def test_find_by_name() -> None:
    assert registry.find("tcp").name == "tcp"
    other = replace(loopback.SPEC, name="other")
    assert registry.find("other", [other]) is other


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tpc", "there is no transport 'tpc'; did you mean 'tcp'? There are: shm, tcp, loopback"),
        ("loop", "did you mean 'loopback'?"),
        ("zzz", "'zzz'; There are: shm, tcp, loopback"),
    ],
)
def test_find_names_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.find(name)
    assert words in str(caught.value)


def test_survey_reports_yes_and_no_with_reasons() -> None:
    broken = replace(loopback.SPEC, name="broken", probe=lambda config: Availability(False, "out of order"))
    lines = registry.survey([loopback.SPEC, broken])
    assert [(line.name, line.available) for line in lines] == [("loopback", True), ("broken", False)]
    assert lines[1].reason == "out of order"
    assert all(line.reason for line in registry.survey())
