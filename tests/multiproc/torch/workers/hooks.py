"""hccl_py.torch.comm_hook under torch's own DistributedDataParallel and FSDP2, against them without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from checks import refuses, run_all, start
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from hccl_py.core.errors import ConfigError
from hccl_py.scheduler.decision import Decision, Kind, PlanChoice, Tuning
from hccl_py.torch import DistributedDataParallel as OwnDdp
from hccl_py.torch import comm_hook

os.environ["HCCL_PY_DETERMINISTIC"] = "1"  # read when a group is made
RANK, SIZE = start()
MESH = init_device_mesh("cpu", (SIZE,))
STEPS = 7


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(37, 37), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(37, 300)).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(5, 37, generator=torch.Generator().manual_seed(100 * step + RANK)).to(dtype)


def train(module: nn.Module, before: Callable[[int], Any] = lambda step: None, **kinds: Any) -> list[Tensor]:
    """All parameters after each step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        before(step)
        optimizer.zero_grad()
        module(batch(step, **kinds)).square().mean().backward()
        optimizer.step()
        found.append(torch.cat([whole(p).flatten() for p in module.parameters()]))
    return found


def whole(parameter: Any) -> Tensor:
    tensor = parameter.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), f"step {step}: {(a - b).abs().max()}"


def switching(loop: Any, tuning: Tuning) -> None:
    """Let all ranks propose a switch: what is exchanged next carries it."""
    policy = loop.policy
    decision = policy._switch(
        loop._step, policy.current.__class__(policy.current.buckets, policy.current.topology, tuning), 1.0, "a test"
    )
    assert decision.kind is Kind.SWITCH and isinstance(decision, Decision)
    assert all(isinstance(choice, PlanChoice) for choice in decision.choices)
    loop._proposal = decision


def ddp(module: nn.Module, hook: Any = None, **words: Any) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(module, bucket_cap_mb=0.01, **words)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return wrapped


def ddp_same_bits() -> None:
    hook = comm_hook()
    same(train(ddp(model(), hook)), train(ddp(model())))
    assert hook.schedule is not None and hook.schedule.loop is not None
    assert len(hook.schedule.loop.policy.current.buckets) > 1
    hook.schedule.close()


def ddp_types() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        hook = comm_hook()
        same(train(ddp(model(dtype), hook), dtype=dtype), train(ddp(model(dtype)), dtype=dtype))
        assert hook.schedule is not None
        hook.schedule.close()


def ddp_views_unused_and_no_sync() -> None:
    hook = comm_hook()
    module = ddp(model(), hook, gradient_as_bucket_view=True, find_unused_parameters=True)
    with module.no_sync():
        module(batch(0)).sum().backward()
    local = [whole(p.grad) for p in module.parameters()]
    module(batch(0)).sum().backward()
    for p, mine in zip(module.parameters(), local, strict=True):
        mean = 2 * mine
        dist.all_reduce(mean)
        torch.testing.assert_close(p.grad, mean / SIZE)


def ddp_a_switch_cuts_buckets() -> None:
    """After a switch that all ranks agree on buckets travel in pieces, and the bits stay."""
    hook = comm_hook()
    cut = []

    def before(step: int) -> None:
        schedule = hook.schedule
        if step == 3:
            assert schedule is not None and schedule.loop is not None
            switching(schedule.loop, Tuning(chunk_bytes=1024))
        if schedule is not None and schedule.tuning.chunk_bytes:
            cut.append(step)

    same(train(ddp(model(), hook), before), train(ddp(model())))
    assert cut, "the switch was not adopted"
    everyone: list[Any] = [None] * SIZE
    dist.all_gather_object(everyone, cut)
    assert everyone == [cut] * SIZE, everyone
    assert hook.schedule is not None
    hook.schedule.close()


def ddp_a_pass_that_fails() -> None:
    hook = comm_hook()
    module = ddp(model(), hook)
    train(module)
    assert hook.schedule is not None
    hook.schedule.abandon()
    train(module)
    hook.schedule.close()


def sharded(module: nn.Sequential, **words: Any) -> nn.Module:
    for layer in module:
        fully_shard(layer, mesh=MESH, **words)
    return fully_shard(module, mesh=MESH, **words)


def fsdp_same_bits() -> None:
    hook = comm_hook(MESH.get_group())
    module = sharded(model())
    hook.serve(module)
    same(train(module), train(sharded(model())))
    assert hook._scatters is not None and hook._scatters.deferred == 5 * STEPS  # backward waited for none
    assert hook.schedule is not None and hook.schedule.loop is not None
    hook.schedule.close()


def fsdp_pieces() -> None:
    hook = comm_hook(MESH.get_group())
    module = sharded(model())
    hook.serve(module)
    assert hook.schedule is not None

    def before(step: int) -> None:
        schedule = hook.schedule
        if step == 3:
            assert schedule is not None and schedule.loop is not None
            switching(schedule.loop, Tuning(chunk_bytes=512))

    same(train(module, before), train(sharded(model())))
    assert hook.schedule.tuning.chunk_bytes == 512, "the switch was not adopted"
    hook.schedule.close()


def fsdp_where_results_are_used_at_once() -> None:
    """Reduced in another type, or added to what is there: backward waits for each."""
    words = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}
    hook = comm_hook(MESH.get_group())
    module = sharded(model(), **words)
    hook.serve(module)
    same(train(module), train(sharded(model(), **words)))
    assert hook._scatters is not None and hook._scatters.deferred == 0

    def twice(module: nn.Module) -> list[Tensor]:
        for step in range(2):
            module(batch(step)).square().mean().backward()
        return [whole(p.grad).flatten() for p in module.parameters()]

    hook = comm_hook(MESH.get_group())
    module = sharded(model())
    hook.serve(module)
    same(twice(module), twice(sharded(model())))
    assert hook._scatters is not None and hook._scatters.deferred == 5


def fsdp_after_a_pass_that_failed() -> None:
    hook = comm_hook(MESH.get_group())
    module = sharded(model())
    hook.serve(module)
    broken = module[0].register_full_backward_hook(lambda *_: 1 / 0)  # type: ignore[index]
    refuses(ZeroDivisionError, "", lambda: module(batch(0)).sum().backward())
    broken.remove()
    assert hook._scatters is not None and hook._scatters._task is not None
    fresh = sharded(model())
    comm_hook(MESH.get_group()).serve(fresh)
    same(train(fresh), train(sharded(model())))


def own_wrapper_pieces_and_bf16() -> None:
    """The scheduler's choices for our own wrapper: pieces keep the bits; bf16 is a sum in float32 of rounded parts."""
    whole_module, cut = OwnDdp(model(), bucket_cap_mb=0.01), OwnDdp(model(), bucket_cap_mb=0.01)
    cut.reducer.adopt(cut.bucket_plan, Tuning(chunk_bytes=1024))
    same(train(cut), train(whole_module))

    narrow = OwnDdp(model(), bucket_cap_mb=0.01)
    count = len(narrow.bucket_plan)
    codecs = ["bf16"] + ["exact"] * (count - 1)
    narrow.reducer._tuning = Tuning()
    narrow.arrange = lambda: None  # type: ignore[method-assign]  # the same buckets in each step
    narrow.reducer.adopt(narrow.bucket_plan, Tuning(chunk_bytes=1024), codecs)
    alone = model()
    alone(batch(0)).square().mean().backward()
    narrow(batch(0)).square().mean().backward()
    first = {span.parameter for span in narrow.bucket_plan.buckets[0].spans}
    rest = {span.parameter for bucket in narrow.bucket_plan.buckets[1:] for span in bucket.spans}
    assert first - rest, "no parameter is in the first bucket alone"
    for index, (p, q) in enumerate(zip(narrow.module.parameters(), alone.parameters(), strict=True)):
        assert p.grad is not None and q.grad is not None
        part = q.grad * (1.0 / SIZE)
        parts: list[Any] = [None] * SIZE
        if index not in first:
            exact = part.clone()
            dist.all_reduce(exact)
            if index in rest:
                torch.testing.assert_close(p.grad, exact, rtol=1e-6, atol=1e-9)
        dist.all_gather_object(parts, part.to(torch.bfloat16).float())
        if index in first - rest:
            total = parts[0].clone()
            for other in parts[1:]:
                total += other
            assert torch.equal(p.grad, total.to(torch.bfloat16).float()), index


def own_wrapper_lets_the_scheduler_choose() -> None:
    os.environ["HCCL_PY_SCHEDULER"] = "1"
    group = dist.new_group()
    del os.environ["HCCL_PY_SCHEDULER"]
    module = OwnDdp(model(), process_group=group, compression="scheduler")
    train(module)
    adaptation = module._adaptation
    assert adaptation is not None and adaptation._loop.policy._arranger._narrows
    adaptation.close()
    plain = OwnDdp(model(), process_group=group)
    train(plain)
    assert plain._adaptation is not None and not plain._adaptation._loop.policy._arranger._narrows
    plain._adaptation.close()
    refuses(ConfigError, "HCCL_PY_SCHEDULER", lambda: OwnDdp(model(), compression="scheduler"))
    refuses(
        ConfigError,
        "bucket_cap_mb",
        lambda: OwnDdp(model(), process_group=group, compression="scheduler", bucket_cap_mb=1),
    )


def refusals() -> None:
    refuses(ConfigError, "backend", lambda: comm_hook(dist.new_group(backend="gloo")))
    refuses(ConfigError, "fully_shard", lambda: comm_hook(MESH.get_group()).serve(model()))
    refuses(ConfigError, "another process group", lambda: comm_hook(dist.new_group()).serve(sharded(model())))
    hook = comm_hook(MESH.get_group()).serve(sharded(model()))
    refuses(ConfigError, "already", lambda: hook.serve(sharded(model())))


run_all(
    {
        check.__name__: check
        for check in (
            ddp_same_bits,
            ddp_types,
            ddp_views_unused_and_no_sync,
            ddp_a_switch_cuts_buckets,
            ddp_a_pass_that_fails,
            fsdp_same_bits,
            fsdp_pieces,
            fsdp_where_results_are_used_at_once,
            fsdp_after_a_pass_that_failed,
            own_wrapper_pieces_and_bf16,
            own_wrapper_lets_the_scheduler_choose,
            refusals,
        )
    }
)
