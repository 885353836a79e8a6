from __future__ import annotations

import json

import pytest

from hccl_py.cli.main import COMMANDS, main
from hccl_py.core.errors import ConfigError


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    captured = capfd.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are not ranks, also when pytest itself runs under mpirun."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


def test_help_names_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capfd, "--help")
    assert status == 0
    for name, summary in COMMANDS.items():
        assert name in out and summary in out, "a summary that does not fit on its line"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capfd, name, "--help")
    assert status == 0 and "Usage: hccl-py " + name in out


@pytest.mark.parametrize("name", ["bench", "doctor", "demo"])
def test_help_of_a_command_has_an_example(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "Example: " in run(capfd, name, "--help")[1]


def test_unknown_command_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capfd, "benhc")
    assert status == 2 and "benhc" in err


def test_our_errors_are_one_line_and_exit_2(capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capfd, "bench", "all_reduced")
    assert status == 2
    assert err.startswith("hccl-py: ConfigError: bench all_reduced: no such collective; known: all_reduce,")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("-b", "x"), "not a size"),
        (("-b", "8", "-e", "4"), "-e not below -b"),
        (("-b", "8", "-e", "64", "-f", "1"), "-f 1"),
        (("-b", "8", "-e", "64", "-f", "2", "-i", "8"), "exclude each other"),
        (("-d", "float31"), "-d float31"),
        (("-o", "mean"), "-o mean"),
    ],
)
def test_bench_refuses_bad_flags(arguments: tuple[str, ...], word: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capfd, "bench", "all_reduce", *arguments)
    assert status == 2 and word in err


def test_other_errors_show_their_traceback(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hccl_py.cli.bench._cases", lambda _: 1 / 0)
    status, _, err = run(capfd, "bench", "all_reduce")
    assert status == 1 and "ZeroDivisionError" in err and "Traceback" in err


def test_doctor_reports_everything(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_PY_TIMEOUT_S", "7")
    main_status, out, _ = run(capfd, "doctor", "--json")
    record = json.loads(out)
    groups = {finding["group"] for finding in record["findings"]}
    assert groups >= {"build", "transports", "extras", "MPI", "machine"}
    names = {finding["name"] for finding in record["findings"]}
    assert names >= {"native engine", "shm", "tcp", "torch", "mpi4py", "mpirun", "CPUs", "/dev/shm", "locked memory"}
    for finding in record["findings"]:
        assert finding["detail"], f"{finding['name']}: yes or no must come with a reason"
    setting = next(row for row in record["settings"] if row["name"] == "HCCL_PY_TIMEOUT_S")
    assert (setting["value"], setting["origin"]) == ("7", "environment")
    assert main_status == 0


def test_doctor_refuses_a_wrong_setting(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_PY_TIMEOUTS", "7")
    status, _, err = run(capfd, "doctor")
    assert status == 2 and "did you mean HCCL_PY_TIMEOUT_S" in err


def test_config_error_is_a_value_error() -> None:
    assert issubclass(ConfigError, ValueError)
