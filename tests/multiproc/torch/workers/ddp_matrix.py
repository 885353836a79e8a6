"""hccl_py.torch's DistributedDataParallel against torch's: gradients, parameters, buffers of every step, bit for bit.

Each case trains torch's wrapper over hccl_py in deterministic mode, ours, ours with another bucket plan in every step,
and, with two ranks (one order of summation), torch's over gloo.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from checks import refuses, run_all, start
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.utils.checkpoint import checkpoint

from hccl_py.core.errors import ConfigError
from hccl_py.scheduler.buckets import Bucket, BucketPlan, Span
from hccl_py.torch import DistributedDataParallel as Ours

RANK, SIZE = start()
GLOO = dist.new_group(backend="gloo")
os.environ["HCCL_PY_DETERMINISTIC"] = "1"  # read when a group is made
CANONICAL = dist.new_group()
os.environ["HCCL_PY_SCHEDULER"] = "1"
ADAPTIVE = dist.new_group()
del os.environ["HCCL_PY_SCHEDULER"]
STEPS = 3
Step = list[tuple[str, Tensor | None]]


class Layers(nn.Module):
    """Embedding, convolution, batch norm with its buffers, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.convolution = nn.Conv2d(6, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Linear(8 * 9, 4)
        self.right = nn.Linear(8 * 9, 4)
        self.never = nn.Linear(3, 3)

    def hidden(self, x: Tensor) -> Tensor:
        image = self.embedding(x).permute(0, 2, 1).reshape(-1, 6, 3, 3).contiguous(memory_format=torch.channels_last)
        return torch.relu(self.norm(self.convolution(image))).flatten(1)

    def forward(self, x: Tensor, step: int) -> Any:
        h = self.hidden(x)
        return self.left(h) + self.right(h) + self.never.weight.sum() + self.never.bias.sum()


class OneHead(Layers):
    """Which head is used depends on rank and step; in step 1 all use the same; one layer is never used."""

    def forward(self, x: Tensor, step: int) -> Any:
        head = self.left if step == 1 or (step + RANK) % 2 == 0 else self.right
        return head(self.hidden(x))


class Heads(Layers):
    """Returns both outputs."""

    def forward(self, x: Tensor, step: int) -> Any:
        h = self.hidden(x)
        return {"left": self.left(h), "right": self.right(h)}


class Tied(nn.Module):
    """The embedding is the output layer, too, and one parameter is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.middle = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.out = nn.Linear(16, 10)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor, step: int) -> Any:
        return self.out(self.frozen(torch.tanh(self.middle(self.embedding(x)))))


class Huge(nn.Module):
    """One parameter that is larger than many buckets, and not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 3001).t())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, step: int) -> Any:
        return self.table[:, x.flatten()].tanh() * self.scale


class Tiny(nn.Module):
    """Hundreds of scalars and pairs, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList([torch.randn(1 + i % 2) for i in range(300)])
        self.empty = nn.Parameter(torch.empty(0, 3))

    def forward(self, x: Tensor, step: int) -> Any:
        return torch.cat([p * (1 + x.float().mean()) for p in self.all]) + self.empty.sum()


class Types(nn.Module):
    """Real parameters of odd sizes between complex ones, and three widths of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.randn(7))
        self.complex = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.other = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
        self.wide = nn.Parameter(torch.randn(9, dtype=torch.float64))
        self.short = nn.Parameter(torch.randn(11, dtype=torch.bfloat16))
        self.tail = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor, step: int) -> Any:
        waves = self.complex.sum() * self.other * torch.polar(torch.ones(()), x.float().mean())
        reals = self.plain.sum() * self.wide * self.short.double().sum() * self.tail
        return torch.view_as_real(waves).double().flatten().outer(reals)


class Lookup(nn.Module):
    """An embedding with sparse gradients, each row once."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 6, sparse=sparse)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor, step: int) -> Any:
        torch.manual_seed(step * 31 + RANK)
        return self.out(self.embedding(torch.randperm(90)[:40]))


class Towers(nn.Module):
    """Two that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(9, 4), nn.Linear(9, 5)

    def forward(self, x: Tensor, step: int) -> Any:
        return {"left": self.left(x.float()), "right": self.right(x.float())}


class Recomputed(nn.Module):
    """One layer under two re-entrant checkpoints: its gradient comes in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 2)

    def forward(self, x: Tensor, step: int) -> Any:
        h = self.first(x.float())
        for _ in range(2):
            h = checkpoint(lambda h: torch.tanh(self.layer(h)), h, use_reentrant=True)
        return self.last(h)


@dataclass
class Case:
    """A model, how it is wrapped, and how it is trained."""

    model: Callable[[], nn.Module] = Layers
    arguments: dict[str, Any] = field(default_factory=dict)
    set_to_none: bool = True
    local_steps: int = 0
    hook: Any = None
    autocast: bool = False
    loss: Callable[[Any, int], Tensor] = lambda out, step: out.float().square().mean()
    twice: bool = False  # two backward passes a forward pass, or two forward passes a backward pass
    reference: Callable[[], nn.Module] | None = None  # another model for torch over hccl_py


CASES = {
    "plain": Case(),
    "kept_gradients": Case(set_to_none=False),
    "bucket_view": Case(arguments={"gradient_as_bucket_view": True}, set_to_none=False),
    "no_sync": Case(local_steps=2),
    "no_sync_kept": Case(local_steps=1, set_to_none=False),
    "no_sync_bucket_view": Case(arguments={"gradient_as_bucket_view": True}, local_steps=1, set_to_none=False),
    "unused": Case(OneHead, {"find_unused_parameters": True}),
    "unused_no_sync": Case(OneHead, {"find_unused_parameters": True}, local_steps=1),
    "unused_output": Case(
        Heads, {"find_unused_parameters": True}, loss=lambda out, step: out[("left", "right")[step % 2]].sum()
    ),
    "static_graph": Case(arguments={"static_graph": True}),
    "static_unused": Case(Heads, {"static_graph": True}, loss=lambda out, step: (out["left"] + out["right"]).sum()),
    "reentrant": Case(Recomputed, {"static_graph": True}),
    "two_backwards": Case(Towers, twice=True),
    "tied_and_frozen": Case(Tied),
    "huge": Case(Huge),
    "tiny": Case(Tiny),
    "types": Case(Types),
    "half": Case(lambda: Tied().half()),
    "bfloat16": Case(lambda: Tied().bfloat16()),
    "autocast": Case(autocast=True),
    "sparse": Case(Lookup, reference=lambda: Lookup(sparse=False)),
    "no_buffers": Case(arguments={"broadcast_buffers": False}),
    "allreduce_hook": Case(hook=default_hooks.allreduce_hook),
    "fp16_hook": Case(hook=default_hooks.fp16_compress_hook),
}


def some_plan(ddp: Ours, seed: int) -> BucketPlan:
    """The parameters in any order, cut at any places; the same on all ranks."""
    dice, parameters = random.Random(seed), ddp.reducer.parameters
    order = list(range(len(parameters)))
    dice.shuffle(order)
    most = dice.choice([40, 1000, 30000])
    buckets: list[Bucket] = []
    for index in order:
        at = 0
        while at < parameters.numel[index]:
            count = min(dice.randint(1, most), parameters.numel[index] - at)
            span, kind = Span(index, at, count), parameters.dtype[index]
            if buckets and buckets[-1].dtype is kind and dice.random() < 0.7:
                buckets[-1] = Bucket(kind, (*buckets[-1].spans, span))
            else:
                buckets.append(Bucket(kind, (span,)))
            at += count
    return BucketPlan(tuple(buckets))


def train(wrapper: Any, group: Any, case: Case, *, model: Any = None, plans: bool = False) -> list[Step]:
    """What each step left: this rank's loss, all gradients, then parameters and buffers."""
    torch.manual_seed(100 + RANK)  # differs between ranks: DDP must send rank 0's
    ddp = wrapper((model or case.model)(), process_group=group, bucket_cap_mb=0.001, **case.arguments)
    if case.hook is not None:
        ddp.register_comm_hook(group, case.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    record: list[Step] = []

    def forward(step: int) -> Any:
        torch.manual_seed(1000 + 17 * step + RANK)
        with torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext():
            return ddp(torch.randint(0, 10, (4, 9)), step)

    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=case.set_to_none)
        for local in range(case.local_steps):
            with ddp.no_sync():
                case.loss(forward(step * 7 + local), step).backward()
            if plans:
                ddp.adopt(some_plan(ddp, step * 7 + local))
        if plans and not case.local_steps:
            ddp.adopt(some_plan(ddp, step))
        out = forward(step)
        if case.twice:
            parts = out["left"].sum(), (forward(step) if step % 2 else out)["right"].square().sum()
            loss = parts[0] + parts[1]
            for part in [loss] if step % 2 else parts:
                part.backward()
        else:
            loss = case.loss(out, step)
            loss.backward()
        gradients = [(name, _dense(p.grad)) for name, p in ddp.named_parameters()]
        optimizer.step()
        record.append([("loss", loss.detach()), *gradients, *_copied(ddp.state_dict())])
    return record


def _dense(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else (grad.to_dense() if grad.is_sparse else grad).detach().clone()


def _copied(state: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, tensor.detach().clone()) for name, tensor in state.items()]


def same(ours: list[Step], theirs: list[Step], what: str) -> None:
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert [name for name, _ in mine] == [name for name, _ in other], "other names"
        for (name, a), (_, b) in zip(mine, other, strict=True):
            equal = a is b if a is None or b is None else torch.equal(a.nan_to_num(), b.nan_to_num())
            if not equal:
                raise AssertionError(f"{what}: step {step}, {name}:\n{a}\n{b}")


def check(case: Case) -> Callable[[], None]:
    def run() -> None:
        expected = train(Stock, CANONICAL, case, model=case.reference)
        same(train(Ours, CANONICAL, case), expected, "buckets in order")
        if case.hook is default_hooks.fp16_compress_hook:
            return  # rounds sums of a bucket as a whole
        same(train(Ours, CANONICAL, case, plans=True), expected, "a plan a step")
        if SIZE == 2 and case.hook is None:
            same(train(Stock, GLOO, case), expected, "gloo")

    return run


def the_comparison_can_fail() -> None:
    """The same steps without the sum over ranks leave something else."""
    alone = dist.new_subgroups(group_size=1)[0]
    refuses(AssertionError, "step 0", lambda: same(train(Ours, alone, Case()), train(Ours, CANONICAL, Case()), "sum"))


def uneven_inputs() -> None:
    """Rank 0 has two steps more; every rank ends with its model, as with torch's wrapper."""

    def run(wrapper: Any, initial: bool, group: Any = CANONICAL) -> list[Tensor]:
        torch.manual_seed(0)
        ddp = wrapper(Layers(), process_group=group, bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join(divide_by_initial_world_size=initial):
            for step in range(2 + 2 * (RANK == 0)):
                torch.manual_seed(step * 17 + RANK)
                optimizer.zero_grad()
                ddp(torch.randint(0, 10, (4, 9)), step).square().mean().backward()
                optimizer.step()
        return [tensor.clone() for tensor in ddp.state_dict().values()]

    assert all(map(torch.equal, run(Ours, True), run(Stock, True)))
    if SIZE == 2:
        assert all(map(torch.equal, run(Ours, False), run(Stock, False, GLOO)))
    assert not all(map(torch.equal, run(Ours, True), run(Ours, False))), "the divisor changes nothing"


def gradients_stay() -> None:
    """A new plan keeps what .grad holds, before and after the optimizer has seen it."""
    ddp = Ours(Types(), process_group=CANONICAL)
    ddp(torch.arange(4) + RANK, 0).sum().backward()
    before = [p.grad.clone() for p in ddp.parameters()]
    for seed in range(3):
        ddp.adopt(some_plan(ddp, seed))
        assert all(torch.equal(p.grad, old) for p, old in zip(ddp.parameters(), before, strict=True))
        lies = [arena.flat.data_ptr() for arena in ddp.reducer.layout.arenas.values()]
        assert all(any(0 <= p.grad.data_ptr() - at < 4096 for at in lies) for p in ddp.parameters())


def scheduled() -> None:
    """The scheduler measures and decides while it trains; the bits are those of training without it."""

    def run(wrapper: Any, group: Any) -> list[Tensor]:
        torch.manual_seed(0)
        ddp = wrapper(Tied(), process_group=group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(12):
            torch.manual_seed(step * 17 + RANK)
            optimizer.zero_grad()
            ddp(torch.randint(0, 10, (4, 9)), step).square().mean().backward()
            optimizer.step()
        if wrapper is Ours:
            assert (ddp._adaptation is not None) == (group is ADAPTIVE)
            ddp.adopt(some_plan(ddp, 3))
            assert ddp._adaptation is None
        return [p.detach().clone() for p in ddp.parameters()]

    wanted = run(Stock, CANONICAL)
    assert all(map(torch.equal, run(Ours, ADAPTIVE), wanted))
    assert all(map(torch.equal, run(Ours, CANONICAL), wanted))


def wrong_use() -> None:
    model = nn.Linear(2, 2)
    refuses(ConfigError, "backend hccl_py", lambda: Ours(model, process_group=GLOO))
    refuses(ConfigError, "torch.autocast", lambda: Ours(model, mixed_precision=object()))
    refuses(ConfigError, "device_ids", lambda: Ours(model, device_ids=[0]))
    refuses(ConfigError, "bucket_cap_mb", lambda: Ours(model, bucket_cap_mb=0))
    refuses(ConfigError, "no parameter", lambda: Ours(nn.ReLU()))
    ddp = Ours(Heads(), process_group=CANONICAL)
    other = Ours(nn.Linear(2, 2), process_group=CANONICAL)
    refuses(ConfigError, "not one for the", lambda: ddp.adopt(other.bucket_plan))
    jumps = BucketPlan((Bucket(other.bucket_plan.buckets[0].dtype, (Span(0, 2, 2), Span(0, 0, 2), Span(1, 0, 2))),))
    refuses(ConfigError, "one after the other", lambda: other.adopt(jumps))
    ddp(torch.zeros(2, 9, dtype=torch.long), 0)["left"].sum().backward()
    refuses(ConfigError, "right.weight", lambda: ddp(torch.zeros(2, 9, dtype=torch.long), 0))
    refuses(ConfigError, "under way", lambda: ddp.adopt(some_plan(ddp, 1)))
    refuses(ConfigError, ".module", lambda: copy.deepcopy(other))
    refuses(TypeError, "callable", lambda: ddp.register_comm_hook(None, 3))
    other.register_comm_hook(None, lambda state, bucket: 3)
    refuses(ConfigError, "Future", lambda: other(torch.ones(2)).sum().backward())
    refuses(ConfigError, "there can be one", lambda: other.register_comm_hook(None, default_hooks.allreduce_hook))


def collected() -> None:
    """Without its wrapper a module trains on its own, and the memory of the buckets is gone."""
    module = nn.Linear(3, 3)
    ddp = Ours(module, process_group=CANONICAL)
    ddp(torch.ones(3)).sum().backward()
    del ddp
    module.zero_grad()
    (module(torch.ones(3)).sum() * (RANK + 1)).backward()
    assert torch.equal(module.bias.grad, torch.full((3,), RANK + 1.0))


def compiled() -> None:
    """The wrapper breaks the graph; what is around it and in it is compiled."""
    graphs: list[int] = []

    def backend(module: Any, _: Any) -> Any:
        graphs.append(len(list(module.graph.nodes)))
        return module.forward

    torch.manual_seed(0)
    ddp = Ours(nn.Linear(9, 9), process_group=CANONICAL)
    x = torch.randn(2, 9) + RANK
    ddp(x * 2).square().sum().backward()
    expected = [p.grad.clone() for p in ddp.parameters()]

    @torch.compile(backend=backend)
    def loss() -> Tensor:
        return ddp(x * 2).square().sum()

    for _ in range(2):
        ddp.zero_grad()
        loss().backward()
        assert all(torch.equal(p.grad, g) for p, g in zip(ddp.parameters(), expected, strict=True))
    assert len(graphs) >= 2


if SIZE == 2:
    extras = [the_comparison_can_fail, uneven_inputs, gradients_stay, collected, compiled, scheduled, wrong_use]
else:  # 1/n is rounded, and the order of a sum matters
    rounded = (
        "kept_gradients",
        "bucket_view",
        "no_sync_bucket_view",
        "unused",
        "huge",
        "types",
        "half",
        "allreduce_hook",
    )
    CASES, extras = {name: CASES[name] for name in rounded}, [uneven_inputs]
run_all({name: check(case) for name, case in CASES.items()} | {extra.__name__: extra for extra in extras})
dist.destroy_process_group()
