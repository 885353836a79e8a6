"""Makes reference.py, matrix.py, graphs.py and network.py importable as scheduler_reference and so on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

for _name in ("reference", "matrix", "graphs", "network"):
    _spec = importlib.util.spec_from_file_location(f"scheduler_{_name}", Path(__file__).with_name(f"{_name}.py"))
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[f"scheduler_{_name}"] = _module
    _spec.loader.exec_module(_module)
