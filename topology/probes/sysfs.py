"""Reading sysfs: small text files that may be missing, unreadable or nonsense, none of which is an error here."""

from __future__ import annotations

import re
from pathlib import Path

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

# Share of the raw bits that are payload: 8b/10b up to PCIe 2, 128b/130b up to PCIe 5, 242 of 256 bytes in PCIe 6 flits.
_PCIE_ENCODING = ((5.0, 8 / 10), (32.0, 128 / 130), (64.0, 242 / 256))


def read_text(path: Path) -> str:
    """The stripped content, or ""."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # also EINVAL, which `speed` of a virtual or downed interface gives
        return ""


def read_int(path: Path, default: int) -> int:
    """The content as a number (decimal, or with 0x), or ``default``."""
    try:
        return int(read_text(path), 0)
    except ValueError:
        return default


def names(folder: Path) -> list[str]:
    """Sorted names in a folder; none if there is no such folder."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def cpu_list(text: str) -> frozenset[int]:
    """The numbers of a kernel CPU list such as ``0-3,8``; what is not a number is left out."""
    cpus: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit() and (high or low).isdigit():
            cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def pci_folder(device: Path) -> Path | None:
    """The PCI device that ``device`` is or hangs on (virtio devices hang on one); None for what is on no PCI bus."""
    if not device.exists():
        return None
    device = device.resolve()
    return next((folder for folder in (device, *device.parents) if _PCI_ADDRESS.fullmatch(folder.name)), None)


def pcie_Bps(device: Path) -> float | None:
    """Bandwidth of a PCI device's slot in bytes/second and direction; None if sysfs does not say.

    The lower of what the device and the port above it can do: the *current* speed is no guide, since idle devices turn
    it down.
    """
    device = device.resolve()
    ends = [end for end in (_end_Bps(device), _end_Bps(device.parent)) if end is not None]
    return min(ends) if ends else None


def _end_Bps(device: Path) -> float | None:
    speed, width = read_text(device / "max_link_speed").split(" ")[0], read_int(device / "max_link_width", 0)
    try:
        transfers = float(speed)  # giga-transfers per second and lane
    except ValueError:
        return None
    return pcie_lanes_Bps(transfers, width)


def pcie_lanes_Bps(transfers: float, lanes: int) -> float | None:
    """Payload of a PCIe link each way in bytes/second, or None if there is no such link.

    Args:
        transfers: giga-transfers per second and lane, such as 16.
        lanes: such as 16.
    """
    share = next((share for top, share in _PCIE_ENCODING if transfers <= top), 0.0)
    return transfers * 1e9 * share / 8 * lanes if transfers > 0 and 0 < lanes <= 32 and share else None
