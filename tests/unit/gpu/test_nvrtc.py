"""Compiling kernels: variants by number, the cache on disk, and what is said where there is no compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from hccl_py import _native
from hccl_py.core.errors import ConfigError, TransportUnavailableError
from hccl_py.core.types import DType, ReduceOp
from hccl_py.gpu import compiler, nvrtc
from hccl_py.gpu.compiler import COPY, Compiler, variant


def test_keys_name_variants() -> None:
    assert variant(0xFFFFFFFF) == (DType.UINT8, DType.UINT8, COPY)
    assert variant(1 | 3 << 4 | 4 << 8) == (DType.FLOAT32, DType.BFLOAT16, ReduceOp.MAX)


class FakeNvrtc:
    compiled: list[Any] = []  # noqa: RUF012  # shared on purpose

    def version(self) -> tuple[int, int]:
        return 13, 0

    def compile(self, source: str, headers: Any, options: Any) -> tuple[bytes, str]:
        FakeNvrtc.compiled.append((source, dict(headers), list(options)))
        return b"cubin of " + " ".join(options).encode(), ""


def test_an_image_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "Nvrtc", FakeNvrtc)
    FakeNvrtc.compiled.clear()
    first = Compiler("sm_90", 2, tmp_path).image(DType.BFLOAT16, DType.BFLOAT16, ReduceOp.SUM)
    assert Compiler("sm_90", 2, tmp_path).image(DType.BFLOAT16, DType.BFLOAT16, ReduceOp.SUM) == first
    assert len(FakeNvrtc.compiled) == 1
    _, headers, options = FakeNvrtc.compiled[0]
    assert set(headers) == {
        "exchange.hpp",
        "exchange_types.hpp",
        "exchange_device.hpp",
        "exchange_carry.hpp",
        "exchange_elements.hpp",
    }
    assert {"--gpu-architecture=sm_90", "-DHP_SIZE=2", "-DHP_ELEM=3", "-DHP_OP=0"} <= set(options)
    assert Compiler("sm_80", 2, tmp_path).image(DType.BFLOAT16, DType.BFLOAT16, ReduceOp.SUM) != first
    assert Compiler("sm_90", 2, None).image(DType.BFLOAT16, DType.BFLOAT16, ReduceOp.SUM) == first
    assert len(FakeNvrtc.compiled) == 3


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise OSError(f"no {name}")

    monkeypatch.setattr(ctypes, "CDLL", none)
    with pytest.raises(TransportUnavailableError, match="pip install"):
        nvrtc.Nvrtc()


def test_kernel_sources_travel_with_the_package() -> None:
    sources = _native.kernel_sources()
    kernels = Path(__file__).parents[3] / "native" / "kernels"
    for name, text in sources.items():
        assert text == (kernels / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_a_device_that_is_not_there(kind: str) -> None:
    if kind == "cuda" and Path("/dev/nvidiactl").exists():
        pytest.skip("there is an NVIDIA GPU here")
    with pytest.raises(TransportUnavailableError if kind == "cuda" else ConfigError):
        _native.DeviceGroup(kind, 0, 0, 2)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 9), (2, 2)])
def test_ranks_out_of_range(rank: int, size: int) -> None:
    with pytest.raises(ConfigError):
        _native.DeviceGroup("host", 0, rank, size)


def test_options_out_of_range() -> None:
    group = _native.DeviceGroup("host", 0, 0, 2)
    with pytest.raises(ConfigError, match="16 batches"):
        group.set_options(1.0, 64, 0, batches=5, slots=4)
    with pytest.raises(ConfigError, match="at most 3"):
        group.set_options(1.0, 64, 0, takers=4)
    group.close()
