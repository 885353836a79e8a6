from __future__ import annotations

from dataclasses import fields

import pytest

from hccl_py.core.env import Env, Launch, markdown_table, variable
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective

GOOD = {
    "HCCL_PY_TRANSPORTS": ("tcp, shm", ("tcp", "shm")),
    "HCCL_PY_TIMEOUT_S": ("2.5", 2.5),
    "HCCL_PY_ALGORITHM": ("tree,all_reduce:ring", (("*", "tree"), ("all_reduce", "ring"))),
    "HCCL_PY_DETERMINISTIC": ("yes", True),
    "HCCL_PY_STRICT": ("1", True),
    "HCCL_PY_CHECK_SITES": ("1", True),
    "HCCL_PY_TOPOLOGY": ("/a/b.yaml", "/a/b.yaml"),
    "HCCL_PY_HOST_ID": ("node 7", "node 7"),
    "HCCL_PY_INTERFACES": ("eth0,10.0.0.0/8", "eth0,10.0.0.0/8"),
    "HCCL_PY_PORT_RANGE": ("20000-20100", (20000, 20100)),
    "HCCL_PY_FAMILY": ("IPv6", "ipv6"),
    "HCCL_PY_CONNECTIONS": ("4", 4),
    "HCCL_PY_CONGESTION": ("reno", "reno"),
    "HCCL_PY_RING_BYTES": ("1M", 1 << 20),
    "HCCL_PY_SLOT_BYTES": ("16KiB", 16 << 10),
    "HCCL_PY_SHARED_FROM_BYTES": ("4096", 4096),
    "HCCL_PY_PRIVATE_FROM_BYTES": ("1M", 1048576),
    "HCCL_PY_SEGMENT_BYTES": ("32768", 32768),
    "HCCL_PY_SPIN": ("0", 0),
    "HCCL_PY_GPU_SMS": ("32", 32),
    "HCCL_PY_GPU_WIRE": ("bf16", "bf16"),
    "HCCL_PY_CACHE": ("/a/cache", "/a/cache"),
    "HCCL_PY_SCHEDULER": ("1", True),
    "HCCL_PY_STATUS": ("/a/folder", "/a/folder"),
    "HCCL_PY_PICKLE": ("any", "any"),
    "HCCL_PY_LOG_LEVEL": ("DEBUG", "debug"),
}
BAD = {
    "HCCL_PY_TRANSPORTS": ("shm,,tcp", "shm,shm", "SHM!"),
    "HCCL_PY_TIMEOUT_S": ("0", "-1", "soon", "inf", "nan"),
    "HCCL_PY_ALGORITHM": ("all_reduced:ring", "ring,tree", "all_reduce:", "all_reduce:Ring"),
    "HCCL_PY_DETERMINISTIC": ("2", "maybe", ""),
    "HCCL_PY_STRICT": ("-",),
    "HCCL_PY_CHECK_SITES": ("2",),
    "HCCL_PY_TOPOLOGY": ("", " "),
    "HCCL_PY_HOST_ID": ("",),
    "HCCL_PY_INTERFACES": ("",),
    "HCCL_PY_PORT_RANGE": ("20100-20000", "0-5", "1-70000", "x"),
    "HCCL_PY_FAMILY": ("ipv5",),
    "HCCL_PY_CONNECTIONS": ("0", "65", "1.5"),
    "HCCL_PY_CONGESTION": ("", " "),
    "HCCL_PY_RING_BYTES": ("1", "2G", "1.5", "64Q"),
    "HCCL_PY_SLOT_BYTES": ("3", "-64"),
    "HCCL_PY_SHARED_FROM_BYTES": ("-1", "many"),
    "HCCL_PY_PRIVATE_FROM_BYTES": ("2T",),
    "HCCL_PY_SEGMENT_BYTES": ("1T",),
    "HCCL_PY_SPIN": ("-1", "many"),
    "HCCL_PY_GPU_SMS": ("1", "129", "all"),
    "HCCL_PY_GPU_WIRE": ("fp8",),
    "HCCL_PY_CACHE": ("",),
    "HCCL_PY_SCHEDULER": ("perhaps",),
    "HCCL_PY_STATUS": ("",),
    "HCCL_PY_PICKLE": ("all",),
    "HCCL_PY_LOG_LEVEL": ("loud",),
}


def test_tables_of_this_test_name_every_setting() -> None:
    names = {variable(setting) for setting in fields(Env)}
    assert set(GOOD) == names and set(BAD) == names


def test_nothing_set_gives_the_defaults() -> None:
    assert Env.from_environ({"PATH": "/bin", "HCCL_OTHER": "1"}) == Env()


@pytest.mark.parametrize("name", GOOD)
def test_each_setting_changes_its_field_and_no_other(name: str) -> None:
    text, value = GOOD[name]
    env = Env.from_environ({name: text})
    field = name.removeprefix("HCCL_PY_").lower()
    assert getattr(env, field) == value != getattr(Env(), field)
    assert [f.name for f in fields(Env) if getattr(env, f.name) != getattr(Env(), f.name)] == [field]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_wrong_value_names_variable_value_and_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Env.from_environ({name: text})
    message = str(caught.value)
    allowed = next(f.metadata["allowed"] for f in fields(Env) if variable(f) == name)
    assert name in message and repr(text) in message and allowed in message


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("HCCL_PY_TIMEOUT", "HCCL_PY_TIMEOUT_S"),
        ("HCCL_PY_TRANSPORT", "HCCL_PY_TRANSPORTS"),
        ("HCCL_PY_ALGO", "HCCL_PY_ALGORITHM"),
    ],
)
def test_unknown_name_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"{typed} is no setting.*did you mean {meant}\?"):
        Env.from_environ({typed: "1"})


def test_algorithm_for_a_collective_beats_the_general_one() -> None:
    env = Env.from_environ({"HCCL_PY_ALGORITHM": "tree,all_reduce:ring"})
    assert env.algorithm_for(Collective.ALL_REDUCE) == "ring"
    assert env.algorithm_for(Collective.BROADCAST) == "tree"
    assert Env().algorithm_for(Collective.BROADCAST) is None


def test_table_tells_value_and_origin_and_reads_back() -> None:
    environ = {name: text for name, (text, _) in GOOD.items()}
    env = Env.from_environ(environ)
    rows = env.table(environ)
    assert {row.origin for row in rows} == {"environment"}
    assert Env.from_environ({row.name: row.value for row in rows}) == env
    assert {row.origin for row in Env().table({})} == {"default"}
    defaults = {row.name: row.default for row in rows if row.default}
    assert Env.from_environ(defaults) == Env()


def test_markdown_has_one_row_a_setting() -> None:
    assert len(markdown_table().splitlines()) == 2 + len(fields(Env))


OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
PLAIN = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, Launch()),
        (OPENMPI, Launch("openmpi", 3, 4, 1, 2)),
        (MPICH, Launch("mpich", 1, 2, 1, 2)),
        (PLAIN, Launch("environment", 1, 8, 1, 4)),
        # torchrun under mpirun: the inner one counts
        ({"TORCHELASTIC_RUN_ID": "x", **PLAIN, **OPENMPI}, Launch("torchrun", 1, 8, 1, 4)),
    ],
)
def test_launcher_is_recognised(environ: dict[str, str], launch: Launch) -> None:
    assert Launch.from_environ(environ) == launch
