"""The scripts of this folder import each other by their bare names, as when they are started; so do their tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
