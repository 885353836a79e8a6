"""Stock DistributedDataParallel over hccl_py: the loss curve of gloo; in deterministic mode the same bits each time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from checks import run_all, start
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hccl_py.torch

RANK, SIZE = start()
FREE = dist.group.WORLD
GLOO = dist.new_group(backend="gloo")
os.environ["HCCL_PY_DETERMINISTIC"] = "1"  # read when a group is made
CANONICAL = dist.new_group()
BLOCKING = dist.new_group(pg_options=hccl_py.torch.Options(blocking=True))

Hook = Callable[[DistributedDataParallel, Any], None]


class Model(nn.Module):
    """Several layers, a buffer, an embedding; one of two heads is unused, and not the same on all ranks."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 32)
        self.first = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 64)
        self.left = nn.Linear(64, 8)
        self.right = nn.Linear(64, 8)
        self.unused = unused

    def forward(self, x: Tensor, index: Tensor, step: int) -> Tensor:
        h = torch.relu(self.norm(self.first(x + self.embedding(index))))
        h = torch.relu(self.second(h))
        if not self.unused:
            return self.left(h) + self.right(h)
        return self.left(h) if (step + RANK) % 2 == 0 else self.right(h)


@dataclass
class Case:
    """One way to use DDP."""

    arguments: dict[str, Any] = field(default_factory=dict)
    unused: bool = False
    accumulate: bool = False
    hook: Hook | None = None
    tolerance: float | None = None  # None: that of float32


def train(group: Any, case: Case, bucket_mb: float = 0.01) -> tuple[list[float], list[Tensor]]:
    """Five steps; the losses of this rank, and the parameters at the end."""
    torch.manual_seed(100 + RANK)  # differs between ranks: DDP must send rank 0's
    ddp = DistributedDataParallel(Model(case.unused), process_group=group, bucket_cap_mb=bucket_mb, **case.arguments)
    if case.hook is not None:
        case.hook(ddp, group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(5):
        torch.manual_seed(1000 + 17 * step + RANK)
        x, index = torch.randn(16, 32), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        if case.accumulate:
            with ddp.no_sync():
                ddp(x, index, step).square().mean().backward()
        loss = ddp(x, index, step).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in ddp.parameters()]


def then_hook(ddp: DistributedDataParallel, group: Any) -> None:
    def hook(_, bucket):  # DDP compares the annotations, if any, with types, not with strings
        buffer = bucket.buffer().div_(SIZE)
        work = dist.all_reduce(buffer, group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, hook)


CASES = {
    "plain": Case(),
    "no_sync": Case(accumulate=True),
    "unused_parameters": Case({"find_unused_parameters": True}, unused=True),
    "static_graph": Case({"static_graph": True}),
    "bucket_view": Case({"gradient_as_bucket_view": True}),
    "allreduce_hook": Case(hook=lambda ddp, group: ddp.register_comm_hook(group, default_hooks.allreduce_hook)),
    "fp16_hook": Case(
        hook=lambda ddp, group: ddp.register_comm_hook(group, default_hooks.fp16_compress_hook),
        tolerance=2e-3,  # sums in float16: gloo rounds after each step, we once
    ),
    "then_hook": Case(hook=then_hook),
    "builtin_hook": Case(hook=lambda ddp, _: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)),
}


def same_on_all_ranks(parameters: list[Tensor]) -> bool:
    """True if this rank has the bits of rank 0, judged by gloo."""
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    reference = flat.clone()
    dist.broadcast(reference, 0, group=GLOO)
    return torch.equal(flat, reference)


def check(case: Case) -> Callable[[], None]:
    def run() -> None:
        expected_losses, expected = train(GLOO, case)
        losses, parameters = train(FREE, case)
        assert same_on_all_ranks(parameters)
        close = partial(torch.testing.assert_close, rtol=case.tolerance, atol=case.tolerance)
        close(torch.tensor(losses), torch.tensor(expected_losses))
        close(parameters, expected)
        once_losses, once = train(CANONICAL, case)
        again_losses, again = train(CANONICAL, case)
        assert once_losses == again_losses and all(map(torch.equal, once, again))
        close(torch.tensor(once_losses), torch.tensor(expected_losses))
        if case.hook is None:
            assert train(CANONICAL, case, bucket_mb=0.03)[0] == once_losses, "the bits depend on the buckets"

    return run


def the_comparison_can_fail() -> None:
    """The same steps without the sum over ranks give another curve."""
    losses, _ = train(CANONICAL, Case())
    alone, _ = train(dist.new_subgroups(group_size=1)[0], Case())
    assert losses != alone


def power_sgd() -> None:
    """Its callbacks issue collectives: that takes a blocking group."""

    def hook(ddp: DistributedDataParallel, group: Any) -> None:
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    _, parameters = train(BLOCKING, Case(hook=hook))
    assert same_on_all_ranks(parameters)


def uneven_inputs() -> None:
    ddp = DistributedDataParallel(Model(False), process_group=FREE)
    for divide_by_initial_world_size in (True, False):
        with Join([ddp], divide_by_initial_world_size=divide_by_initial_world_size):
            for step in range(2 + (RANK == 0)):
                ddp(torch.randn(16, 32), torch.randint(0, 10, (16,)), step).sum().backward()
        assert ddp.module.first.weight.grad is not None


def without_views_or_sync() -> None:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Model(False), process_group=FREE, init_sync=False, broadcast_buffers=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ddp(torch.randn(16, 32), torch.randint(0, 10, (16,)), 0).float().sum().backward()
    gradient = ddp.module.first.weight.grad
    assert gradient is not None and same_on_all_ranks([gradient])


def compiled() -> None:
    torch.manual_seed(0)
    plain = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)), process_group=FREE)
    program = torch.compile(plain, backend="eager")
    torch.manual_seed(RANK)
    x = torch.randn(16, 32)
    for _ in range(2):  # buckets are rebuilt, in the middle of the compiled region, before the second step
        plain.zero_grad()
        program(x).sum().backward()
    gradients = [parameter.grad.clone() for parameter in plain.parameters()]
    plain.zero_grad()
    plain(x).sum().backward()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in plain.parameters()])


def fully_sharded() -> None:
    """FSDP2 on a device mesh, against one whole model whose gradients gloo sums."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 33), nn.ReLU(), nn.Linear(33, 4))

    sharded, whole = make(), make()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (SIZE,)))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (sharded, whole)]
    for step in range(3):
        torch.manual_seed(100 * step + RANK)
        x = torch.randn(8, 32)
        for model, optimizer in zip((sharded, whole), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if model is whole:
                for parameter in whole.parameters():
                    dist.all_reduce(parameter.grad, group=GLOO)
                    parameter.grad.div_(SIZE)
            optimizer.step()
    for ours, expected in zip(sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), expected)


run_all(
    {name: check(case) for name, case in CASES.items()}
    | {
        extra.__name__: extra
        for extra in (the_comparison_can_fail, power_sgd, uneven_inputs, without_views_or_sync, fully_sharded, compiled)
    }
)
dist.destroy_process_group()
