"""Writer: the words in which an algorithm writes one rank's program.

send (local -> peer), recv (peer -> local), recv_reduce ([local, peer] -> local), copy, reduce, and the general `fold`,
of which they are special cases. Every step has a local operand, which gives its length, and at most one local target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.layout import Layout
from hccl_py.scheduler.program import Operand, Program, ScratchSize, Step, Where


class Writer:
    """Collects the steps of ``rank``. Slots are named by :meth:`input`, :meth:`output`, :meth:`scratch`, :meth:`peer`.

    It keeps track of which local slots hold raw contributions; of what a peer sends the algorithm must say it.
    """

    def __init__(
        self,
        collective: Collective,
        world: int,
        root: int,
        rank: int,
        slots_per_block: int,
        params: Mapping[str, object] | None = None,
        channels: int = 1,
        one_round: bool = False,
        shared_fold: bool = False,
    ) -> None:
        self.collective = collective
        self.world = world
        self.root = root
        self.rank = rank
        self.slots = slots_per_block
        self.params = dict(params or {})
        self.one_round = one_round
        self._shared_fold = shared_fold
        self._channels = channels
        self._layout = Layout(collective, world, root, rank, slots_per_block)
        self._scratch: list[ScratchSize] = []
        self._steps: list[Step] = []
        self._sums: set[tuple[Where, int]] = set()  # slots that hold a fold, not a raw contribution

    # ---- operands

    def input(self, block: int = 0, k: int = 0, span: int = 1) -> Operand:
        """``span`` slots of INPUT from slot ``k`` of ``block`` on."""
        return Operand(Where.INPUT, True, 0, 0, block * self.slots + k, span)

    def output(self, block: int = 0, k: int = 0, span: int = 1) -> Operand:
        """``span`` slots of OUTPUT from slot ``k`` of ``block`` on."""
        return Operand(Where.OUTPUT, False, 0, 0, block * self.slots + k, span)

    def scratch(self, *like: Operand) -> Operand:
        """New adjacent scratch slots, each as large as the slot of INPUT or OUTPUT it stands for."""
        first = len(self._scratch)
        for operand in like:
            if operand.where not in (Where.INPUT, Where.OUTPUT):
                raise PlanError(f"rank {self.rank}: scratch as large as {operand}: name slots of INPUT or OUTPUT")
            self._scratch.extend(ScratchSize(operand.where, operand.slot + i) for i in range(operand.span))
        return Operand(Where.SCRATCH, False, 0, 0, first, len(self._scratch) - first)

    @staticmethod
    def part(operand: Operand, first: int, span: int = 1) -> Operand:
        """``span`` of the operand's slots, from its slot number ``first`` on."""
        return operand._replace(slot=operand.slot + first, span=span)

    def peer(self, rank: int, raw: bool = True, channel: int = 0, slot: int = 0) -> Operand:
        """A message to or from ``rank``, as long as the step's local operands.

        Args:
            raw: as a source: the peer sends a raw contribution, not a fold.
            slot: as a source in a one-round plan: the slot of the peer's INPUT.
        """
        return Operand(Where.PEER, raw, channel, rank, slot if self.one_round else 0, 1)

    # ---- words

    def send(self, local: Operand, *peers: Operand) -> None:
        """local -> peers."""
        self.fold([local], peers)

    def recv(self, peer: Operand, local: Operand, *onward: Operand) -> None:
        """peer -> local, and on to other peers while it arrives."""
        self.fold([peer], [local, *onward])

    def recv_reduce(self, peer: Operand, local: Operand, target: Operand) -> None:
        """[local, peer] -> target."""
        self.fold([local, peer], [target])

    def copy(self, source: Operand, target: Operand) -> None:
        """One local range to another."""
        self.fold([source], [target])

    def reduce(self, sources: Iterable[Operand], target: Operand) -> None:
        """Local ranges to another."""
        self.fold(sources, [target])

    def fold(self, sources: Iterable[Operand], targets: Iterable[Operand]) -> None:
        """Left fold of ``sources``, rounded once, into every target."""
        sources, targets = tuple(sources), tuple(targets)
        span = next((o.span for o in (*sources, *targets) if o.where is not Where.PEER), 1)
        marked = tuple(o._replace(span=span) if o.where is Where.PEER else self._marked(o) for o in sources)
        result_is_raw = len(marked) == 1 and marked[0].raw
        cleared = []
        for target in targets:
            if target.where is Where.PEER:
                cleared.append(target._replace(span=span, raw=False))
                continue
            cleared.append(target._replace(raw=False))
            slots = [(target.where, target.slot + i) for i in range(target.span)]
            if result_is_raw:
                self._sums.difference_update(slots)
            else:
                self._sums.update(slots)
        self._steps.append(Step(marked, tuple(cleared)))

    def append(self, step: Step) -> None:
        """A step that was written elsewhere, raw flags included."""
        self._steps.append(step)

    def _marked(self, local: Operand) -> Operand:
        sums = [(local.where, local.slot + i) in self._sums for i in range(local.span)]
        if any(sums) and not all(sums):
            where = f"rank {self.rank}, step {len(self._steps)}"
            raise PlanError(f"{where}: {local} holds raw contributions and sums: write two steps")
        return local._replace(raw=not sums[0])

    def program(self) -> Program:
        """What was written."""
        layout = self._layout
        return Program(
            self.collective, self.world, self.rank, self.root, self.slots, layout.input_blocks, layout.output_blocks,
            tuple(self._scratch), tuple(self._steps), self._channels, self.one_round,
            self._shared_fold,
        )  # fmt: skip
