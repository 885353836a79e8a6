"""Transport ``shm``: the ranks of a host share one memfd, handed out over a Unix socket. ``/dev/shm`` is not used."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from hccl_py.core.errors import ConfigError
from hccl_py.transports.base import Availability, TransportConfig, TransportSpec

_PAGE_BYTES = 4096
_LARGEST_RING_BYTES = 1 << 30
_LARGEST_SLOT_BYTES = 1 << 26


@dataclass(frozen=True)
class ShmConfig(TransportConfig):
    """Sizes of the shared memory; they must be the same on all ranks.

    Raises ConfigError for a size that is out of range or not rounded as required.
    """

    shm_ring_bytes: int = 512 * 1024  # ring of each ordered pair of ranks and channel: a power of two
    shm_slot_bytes: int = 64 * 1024  # payload slot of each rank for messages that go in one round: a multiple of 64
    # From which size on a message is taken straight from the sender's memory; 0: never.
    shm_shared_from_bytes: int = 8 * 1024  # where that memory is shared (Communicator.empty, register)
    shm_private_from_bytes: int = 32 * 1024  # where it is private, and ranks may use process_vm_readv; 4x if folded

    def __post_init__(self) -> None:
        ring, slot = self.shm_ring_bytes, self.shm_slot_bytes
        for name in ("shm_shared_from_bytes", "shm_private_from_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it may be 0 (never) or more")
        if not _PAGE_BYTES <= ring <= _LARGEST_RING_BYTES or ring & (ring - 1):
            raise ConfigError(f"shm_ring_bytes is {ring}; it may be a power of two from 4096 to {_LARGEST_RING_BYTES}")
        if not 64 <= slot <= _LARGEST_SLOT_BYTES or slot % 64:
            raise ConfigError(f"shm_slot_bytes is {slot}; it may be a multiple of 64 from 64 to {_LARGEST_SLOT_BYTES}")


def availability(config: ShmConfig) -> Availability:
    """Make, size, map and touch a memfd, open it again through ``/proc``, and bind an abstract Unix socket."""
    try:
        _share_memory(config.shm_ring_bytes)
    except AttributeError:
        return Availability(False, "this system has no memfd_create (Linux 3.17 and glibc 2.27, or later)")
    except OSError as error:
        return Availability(False, f"no shared anonymous memory: {error}")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.bind(f"\0hccl_py-probe-{secrets.token_hex(8)}")
    except OSError as error:
        return Availability(False, f"no abstract Unix socket, over which the memory is handed out: {error}")
    why = why_private_memory_is_closed()
    large = f"large messages pass through rings, as {why}" if why else "large messages are read where they lie"
    return Availability(True, f"memfd works, /dev/shm is not needed; {large}")


class _Iovec(ctypes.Structure):
    """``struct iovec`` of process_vm_readv(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def why_private_memory_is_closed(root: str = "/") -> str:
    """Why a rank cannot read the private memory of another one of this host; empty if nothing speaks against it.

    Ranks find out for sure when they connect: they may be in different containers.
    """
    there, here = ctypes.c_uint64(42), ctypes.c_uint64(0)
    size = ctypes.sizeof(there)
    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return "this system has no process_vm_readv"
    local, remote = _Iovec(ctypes.addressof(here), size), _Iovec(ctypes.addressof(there), size)
    if read(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != size or here.value != there.value:
        return f"process_vm_readv is not allowed: {os.strerror(ctypes.get_errno())}"
    try:
        scope = int(Path(root, "proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return ""
    if scope == 0 or (scope < 3 and os.geteuid() == 0):
        return ""
    return f"kernel.yama.ptrace_scope is {scope}, which keeps processes out of each other's memory (0 would let them)"


def _share_memory(size_bytes: int) -> None:
    fd = os.memfd_create("hccl_py-probe", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_bytes)
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            # A page that cannot be had would be a SIGBUS on touching it: allocate it, which fails with an error.
            os.posix_fallocate(fd, 0, _PAGE_BYTES)
            with mmap.mmap(fd, _PAGE_BYTES) as ours, mmap.mmap(again, _PAGE_BYTES) as theirs:
                ours[0] = 42
                if theirs[0] != 42:
                    raise OSError("two mappings of one memfd do not share memory")
        finally:
            os.close(again)
    finally:
        os.close(fd)


SPEC = TransportSpec(
    name="shm",
    same_host_only=True,
    maps_peer_memory=True,
    needs="memfd_create, abstract Unix sockets and /proc, shared by the ranks of a host",
    config_type=ShmConfig,
    probe=availability,
)
