"""Streams and events of torch.cuda, which are not typed there."""

from __future__ import annotations

from typing import Any

import torch


def new_event() -> Any:
    """An event that is not yet recorded."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def new_stream(device: torch.device) -> Any:
    """A stream of ``device``, in no order with others, and served before those of ordinary priority."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
