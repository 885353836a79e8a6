"""NVLink by NVML, NVIDIA's management library, if its Python binding (nvidia-ml-py) is installed."""

from __future__ import annotations

import importlib
from typing import Any

from hccl_py.topology.graph import Link, LinkKind, Node, NodeKind
from hccl_py.topology.importers.importer import NVLINK_BPS
from hccl_py.topology.priors import NVLINK, Prior, both_ways
from hccl_py.topology.probes.probe import Found

_MOST_LINKS = 18
_TO_SWITCH = 2  # of nvmlIntNvLinkDeviceType_t


class NvmlProbe:
    """Adds the NVLinks of the GPUs that the PCI probe found: to each other, and to the NVSwitches as one vertex.

    Args:
        nvml: the binding; None: the module ``pynvml``, if there is one.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml

    def probe(self, host: str, so_far: Found) -> Found:
        """See `Probe.probe`."""
        gpus = {_address(node.pci): node.name for node in so_far.nodes if node.kind is NodeKind.DEVICE and node.pci}
        if not gpus:
            return Found()
        try:
            nvml = importlib.import_module("pynvml") if self._nvml is None else self._nvml
            nvml.nvmlInit()
        except Exception as error:  # whatever the binding and the driver raise, discovery goes on
            return Found(notes=(f"NVLinks were not asked for: {type(error).__name__} from NVML",))
        try:
            return self._links(nvml, host, gpus)
        finally:
            nvml.nvmlShutdown()

    def _links(self, nvml: Any, host: str, gpus: dict[str, str]) -> Found:
        widths: dict[tuple[str, str], float] = {}
        switch = f"{host}/nvswitch"
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = gpus.get(_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)))
            if name is None:  # not one that this process sees
                continue
            for number in range(_MOST_LINKS):
                end = self._end(nvml, handle, number, gpus, switch)
                if end is not None:
                    other, width_Bps = end
                    widths[name, other] = widths.get((name, other), 0.0) + width_Bps
        links: list[Link] = []
        for (a, b), width_Bps in widths.items():
            if b == switch or a < b or (b, a) not in widths:
                links += both_ways(a, b, LinkKind.NVLINK, Prior(width_Bps, NVLINK.latency_s))
        nodes = (Node(switch, NodeKind.SWITCH),) if any(b == switch for _, b in widths) else ()
        return Found(nodes, tuple(links))

    @staticmethod
    def _end(nvml: Any, handle: Any, number: int, gpus: dict[str, str], switch: str) -> tuple[str, float] | None:
        """Where an active link leads, and its width; None for one that is not there or leads elsewhere."""
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, number):
                return None
            width_Bps = NVLINK_BPS.get(int(nvml.nvmlDeviceGetNvLinkVersion(handle, number)), NVLINK_BPS[3])
            if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number) == _TO_SWITCH:
                return switch, width_Bps
            remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId
        except Exception:  # NVML's way to say that there is no such link
            return None
        other = gpus.get(_address(_text(remote)))
        return None if other is None else (other, width_Bps)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _address(pci: str) -> str:
    """NVML writes the domain with eight digits, the kernel with four."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest and all(c in "0123456789abcdef" for c in domain) else pci.lower()
