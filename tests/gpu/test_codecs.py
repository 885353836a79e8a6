"""The codecs' one source on a GPU: a run of tests/gpu/workers/codecs.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "workers" / "codecs.py"


def test_block_codecs_have_the_bits_of_the_reference() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.device_count():
        pytest.skip("no CUDA GPU on this machine")
    done = subprocess.run([sys.executable, str(WORKER)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "PASSED 7" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
