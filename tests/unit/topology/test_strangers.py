"""A stranger's malformed YAML is one clear error with file:line, in bounded time and memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import parse_cluster

CONFIGS = Path(__file__).parents[3] / "cluster_configs"
GOOD = (CONFIGS / "wan_three_sites.yaml").read_text()
HEAD = "version: 1\nhosts:\n  h[0-999]:\n    devices: {c: {kind: cpu}}\n"
LINK = "kind: roce, bandwidth: 1B/s, latency: 1s"
MIB = 2**20
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)

# what is wrong -> (the file, what the error says after file and line)
FILES: dict[str, tuple[bytes, str]] = {
    "wrong unit": (GOOD.replace("100Gbit/s", "100Gb", 1).encode(), "link_types.eth100.bandwidth: '100Gb': 'Gb' is not"),
    "no unit": (GOOD.replace("5us", "5", 1).encode(), "link_types.eth100.latency: 5 has no unit"),
    "unknown key": (GOOD.replace("nics:", "nicks:", 1).encode(), "nicks: unknown key; did you mean 'nics'"),
    "dangling link": (GOOD.replace("[site-a, site-b]", "[site-a, site-d]").encode(), "no node matches 'site-d'"),
    "duplicate host": (GOOD.replace("b[0-1]", "a[1-2]", 1).encode(), "'a1' is there twice, first in line"),
    "duplicate key": (GOOD.replace("  c[0-1]", "  b[0-1]", 1).encode(), "is there twice (first in line"),
    "negative bandwidth": (GOOD.replace("100Gbit/s", "-1Gbit/s", 1).encode(), "'-1Gbit/s' is not a bandwidth"),
    "zero bandwidth": (GOOD.replace("100Gbit/s", "0Gbit/s", 1).encode(), "a bandwidth must be above zero"),
    "circle of host types": (GOOD.replace("  server:\n", "  server:\n    type: server\n").encode(), "circle of types"),
    "circle of link types": (GOOD.replace("gen4: {", "gen4: {type: gen4, ").encode(), "gen4.type: a circle of types"),
    "10 MB of [": (b"[" * 10 * MIB, "larger than 1048576 bytes"),
    "10 MB of block nesting": (b"".join(b" " * i + b"a:\n" for i in range(4500)), "larger than 1048576 bytes"),
    "1 MB of [": (b"[" * MIB, "nested too deeply"),
    "1 MB of {": (b"{a: " * (MIB // 4), "nested too deeply"),
    "block nesting": (b"".join(b" " * i + b"a:\n" for i in range(1400)), "nested too deeply"),
    "anchors bomb": (BOMB.encode(), "expands to more than 200000 values"),
    "anchor in itself": (b"version: 1\nhosts: &a {x: *a}\n", "nested more than 24 deep"),
    "not UTF-8": (b"version: 1\nname: caf\xe9\n", "not UTF-8 (byte 0xe9)"),
    "UTF-16": (GOOD.encode("utf-16"), "not UTF-8"),
    "a NUL": (b"version: 1\nname: a\x00b\n", "not YAML"),
    "1 MB of values": (b"version: 1\nx: [" + b"1," * (MIB // 2 - 20), "more than 100000 lines, commas"),
    "1 MB of lines": (b"-\n" * (MIB // 2), "more than 100000 lines, commas"),
    "1 MB in one word": (b"version: 1\nhosts: {h: }\n" + b"x" * 900_000 + b": 1\n", ""),
    "a mesh of a million": (f"{HEAD}links: [{{between: ['h*', 'h*'], {LINK}}}]\n".encode(), "more than 200000 links"),
    "a huge range": (b"version: 1\nhosts:\n  h[0-999999999]:\n", "more than 65536 names"),
    "many huge ranges": (b"version: 1\nhosts:\n"+b"".join(b"  g%d-[0-40000]:\n" % i for i in range(9)), "65536"),
    "a pattern of stars": (f"{HEAD}links: [{{between: ['{'h*' * 30}x', h1], {LINK}}}]\n".encode(), "more than 4 of *"),
    "too many patterns": (
        (HEAD + "links:\n" + "".join(f"  - {{between: ['h<a>', 'h{i}x*y*z'], {LINK}}}\n" for i in range(9))).encode(),
        "no node matches 'h0x*y*z'",
    ),
}  # fmt: skip
SCRIPT = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
from pathlib import Path
from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import load_cluster
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    before = time.process_time()
    try:
        load_cluster(path)
        said = "nothing"
    except ConfigError as error:
        said = str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    print(path.name, round(time.process_time() - before, 2), peak // 1024, said.replace("\\n", "|"), sep="\\t")
"""


@pytest.mark.timeout(240)
def test_every_file_is_one_error_in_bounded_time_and_memory(tmp_path: Path) -> None:
    for name, (data, _) in FILES.items():
        (tmp_path / f"{name}.yaml").write_bytes(data)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == len(FILES)
    for file, seconds, megabytes, said in rows:
        name = file.removesuffix(".yaml")
        assert re.match(rf"{re.escape(str(tmp_path / file))}:\d+: ", said), (name, said)
        assert FILES[name][1] in said and len(said) < 600 and "|" not in said, (name, said)
        assert float(seconds) < 40, (name, seconds)  # 10 s alone on a usual core
        assert int(megabytes) < 400, (name, megabytes)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 40), st.text(": -[]{}*&<>%#'\"\n\tah0.9/", max_size=8))
def test_a_damaged_file_is_a_cluster_or_one_error(at: int, length: int, new: str) -> None:
    body = GOOD[GOOD.index("version") :]
    at %= len(body)
    try:
        parse_cluster(body[:at] + new + body[at + length :], "f.yaml")
    except ConfigError as error:
        assert re.match(r"f\.yaml:\d+: ", str(error))
        assert len(str(error)) < 600
