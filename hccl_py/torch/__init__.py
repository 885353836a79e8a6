"""hccl_py as a backend of torch.distributed::

    import hccl_py.torch
    torch.distributed.init_process_group("hccl_py")

The import registers the backend, nothing else: no thread, no socket, no MPI before a process group is made.
"""

from hccl_py.torch.backend import Options, create, register
from hccl_py.torch.compression import CompressionHook, compression_hook
from hccl_py.torch.ddp.wrapper import DistributedDataParallel
from hccl_py.torch.hooked.hook import CommHook, comm_hook
from hccl_py.torch.process_group import HcclProcessGroup
from hccl_py.torch.sharded.step import ShardedStep
from hccl_py.torch.work import HcclWork

__all__ = [
    "CommHook",
    "CompressionHook",
    "DistributedDataParallel",
    "HcclProcessGroup",
    "HcclWork",
    "Options",
    "ShardedStep",
    "comm_hook",
    "compression_hook",
    "create",
]

register()
