"""What a rank whose data has run out does for the others, inside ``with ddp.join():``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from hccl_py.torch.ddp.wrapper import DistributedDataParallel


class DdpJoinHook(JoinHook):
    """Takes part in every collective of a step with zeros; in the end all get the last ranks' model."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        super().__init__()

    def main_hook(self) -> None:
        """The collectives of one step, in the order of :meth:`DistributedDataParallel.forward` and its backward."""
        ddp = self._ddp
        ddp.arrange()
        if ddp.syncs_buffers():
            ddp.sync_buffers(ddp.common_rank(False))
        ddp.require_forward_param_sync = ddp.asks_for_sync(False)
        if ddp.require_forward_param_sync:
            ddp.reducer.take_part()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks are through."""
        ddp = self._ddp
        ddp.sync_module_states(ddp.common_rank(is_last_joiner), ddp.forward_sync_buffers)
