"""ShardedStep against DistributedDataParallel and an ordinary step, bit for bit in deterministic mode."""

from __future__ import annotations

import copy
import faulthandler
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hccl_py.torch
from hccl_py.core.errors import ConfigError
from hccl_py.torch import ShardedStep
from hccl_py.torch.sharded.guard import GuardedParameters

faulthandler.dump_traceback_later(float(os.environ["WORKER_TIMEOUT_S"]), exit=True)
STEPS = 4
checked = 0


class Attention(nn.Module):
    """nn.MultiheadAttention reads its out_proj's weight without calling it; the place is read by its owner itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.place = nn.Parameter(torch.randn(5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight  # shared

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x) + self.place))


class Recurrent(nn.Module):
    """nn.LSTM holds its parameters in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(11, 6), nn.LSTM(6, 7, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.embed(x))[0]


class Mixed(nn.Module):
    """Parameters of two types, one of them complex."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.wave = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.narrow = nn.Linear(6, 3).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.embed(x).to(torch.bfloat16)).float() * self.wave.abs()


def plain() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 9), nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 2), nn.Flatten())


def batch(step: int) -> Tensor:
    chance = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randint(0, 11, (3, 5), generator=chance)


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2]}]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5),
    "adadelta": lambda params: torch.optim.Adadelta(params, lr=0.1),
    "adamax": lambda params: torch.optim.Adamax(params, lr=0.01),
    "radam": lambda params: torch.optim.RAdam(params, lr=0.01),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
    "asgd": lambda params: torch.optim.ASGD(params, lr=0.01),
}


def both(make: Callable[[], nn.Module], optimizer: str, **options: Any) -> tuple[Any, Any, Any, Any]:
    """The same model twice: under DistributedDataParallel with its optimizer, and with a ShardedStep."""
    torch.manual_seed(dist.get_rank())  # rank 0's parameters count
    model = make()
    other = copy.deepcopy(model)
    wrapped = hccl_py.torch.DistributedDataParallel(model)
    ordinary = OPTIMIZERS[optimizer](groups_of(model))
    sharded = ShardedStep(OPTIMIZERS[optimizer](groups_of(other)), other, bucket_cap_mb=0.0003, **options)
    return wrapped, ordinary, other, sharded


def loss_of(model: Any, step: int) -> Tensor:
    return model(batch(step)).square().mean()


def same(wrapped: Any, other: nn.Module, what: str) -> None:
    global checked
    for (name, a), (_, b) in zip(wrapped.module.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), f"{what}: {name} differs by {(a - b).abs().max()}"
    checked += 1


def steps(make: Callable[[], nn.Module], optimizer: str, **options: Any) -> None:
    wrapped, ordinary, other, sharded = both(make, optimizer, **options)
    for step in range(STEPS):
        ordinary.zero_grad()
        loss_of(wrapped, step).backward()
        ordinary.step()
        loss_of(other, step).backward()
        assert all(p.grad is None for p in other.parameters())
        sharded.step()
    same(wrapped, other, f"{make.__name__} by {optimizer}")
    state_of_both(ordinary, sharded, other, optimizer)


def state_of_both(ordinary: Any, sharded: ShardedStep, other: nn.Module, optimizer: str) -> None:
    """state_dict() is that of the ordinary optimizer; what is loaded goes on in the same way."""
    theirs, ours = ordinary.state_dict(), sharded.state_dict()
    assert theirs["param_groups"] == ours["param_groups"], (theirs["param_groups"], ours["param_groups"])
    assert theirs["state"].keys() == ours["state"].keys()
    for index, state in theirs["state"].items():
        assert state.keys() == ours["state"][index].keys()
        for key, value in state.items():
            mine = ours["state"][index][key]
            alike = torch.equal(value, mine) if isinstance(value, Tensor) else value == mine
            assert alike, f"{optimizer}: state {key} of {index}"
    again = copy.deepcopy(other)
    assert not any(isinstance(m._parameters, GuardedParameters) for m in again.modules())
    resumed = ShardedStep(OPTIMIZERS[optimizer](groups_of(again)), again, bucket_cap_mb=0.0005)  # cut otherwise
    resumed.load_state_dict(theirs)
    for one, model in ((sharded, other), (resumed, again)):
        loss_of(model, 77).backward()
        one.step()
    for a, b in zip(other.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    resumed.close()
    assert not any(isinstance(m._parameters, GuardedParameters) for m in again.modules())


def accumulation() -> None:
    wrapped, ordinary, other, sharded = both(plain, "adamw")
    for step in range(STEPS):
        ordinary.zero_grad()
        with wrapped.no_sync(), sharded.no_sync():
            loss_of(wrapped, 10 + step).backward()
            loss_of(other, 10 + step).backward()
        loss_of(wrapped, step).backward()
        loss_of(other, step).backward()
        ordinary.step()
        sharded.step()
    same(wrapped, other, "accumulation")


def clipping() -> None:
    wrapped, ordinary, other, sharded = both(plain, "adamw")
    for norm in (2.0, 1.0, float("inf")):
        ordinary.zero_grad()
        loss_of(wrapped, 1).backward()
        theirs = nn.utils.clip_grad_norm_(wrapped.parameters(), 1e-3, norm)
        ordinary.step()
        loss_of(other, 1).backward()
        ours = sharded.clip_grad_norm_(1e-3, norm)
        sharded.step()
        assert ours > 1e-3 and torch.isclose(theirs, ours, rtol=1e-5), (norm, theirs, ours)
    for a, b in zip(wrapped.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def scaling() -> None:
    """An infinite gradient on one rank makes all skip the step and lower the scale."""
    wrapped, ordinary, other, sharded = both(plain, "sgd")
    theirs, ours = (torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2) for _ in range(2))
    for step in range(STEPS):
        bad = float("inf") if step == 1 and dist.get_rank() == 0 else 1.0
        ordinary.zero_grad()
        theirs.scale(loss_of(wrapped, step) * bad).backward()
        theirs.step(ordinary)
        theirs.update()
        ours.scale(loss_of(other, step) * bad).backward()
        ours.step(sharded)
        ours.update()
        sharded.zero_grad()
        assert theirs.get_scale() == ours.get_scale(), (step, theirs.get_scale(), ours.get_scale())
    assert ours.get_scale() == 4.0  # halved once, doubled once
    same(wrapped, other, "scaling")


def scheduled() -> None:
    """Schedulers of learning rates reach the optimizer."""
    wrapped, ordinary, other, sharded = both(plain, "adamw")
    rates = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in (ordinary, sharded.optimizer)]
    for step in range(STEPS):
        ordinary.zero_grad()
        loss_of(wrapped, step).backward()
        ordinary.step()
        loss_of(other, step).backward()
        sharded.step()
        for rate in rates:
            rate.step()
    same(wrapped, other, "scheduled")


def compiled() -> None:
    model = plain()
    model.compile(backend="eager")
    refuses("compiled", lambda: ShardedStep(OPTIMIZERS["sgd"](groups_of(model)), model))
    ShardedStep(OPTIMIZERS["sgd"](groups_of(model)), model, overlap=False).close()


def refuses(words: str, call: Callable[[], Any]) -> None:
    global checked
    try:
        call()
    except ConfigError as error:
        assert words in str(error), error
        checked += 1
    else:
        raise AssertionError(f"not refused: {words}")


def refusals() -> None:
    model, frozen = plain(), plain()
    frozen[1].weight.requires_grad_(False)
    sgd = torch.optim.SGD
    refuses("LBFGS is not known", lambda: ShardedStep(torch.optim.LBFGS(model.parameters()), model))
    refuses("not the module's", lambda: ShardedStep(sgd(plain().parameters()), model))
    refuses("frozen", lambda: ShardedStep(sgd(frozen.parameters()), frozen))
    refuses("not above 0", lambda: ShardedStep(sgd(model.parameters()), model, bucket_cap_mb=0))
    sharded = ShardedStep(sgd(model.parameters()), model)
    refuses("no closure", lambda: sharded.step(lambda: 0.0))
    refuses("norm 0", lambda: sharded.clip_grad_norm_(1.0, 0))
    refuses("groups of", lambda: sharded.load_state_dict({"state": {}, "param_groups": []}))
    refuses("no gradient for 2", lambda: model[:2](batch(0)).sum().backward())
    refuses("step() without averages", sharded.step)
    refuses("clip_grad_norm_() without averages", lambda: sharded.clip_grad_norm_(1.0))
    refuses("call step() of ShardedStep", sharded.optimizer.step)
    refuses("served by another", lambda: ShardedStep(sgd(model.parameters()), model))
    loss_of(model, 0).backward()
    refuses("neither used nor dropped", lambda: loss_of(model, 0).backward())
    sharded.zero_grad()
    sharded.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    loss_of(model, 0).backward()
    refuses("another group of", sharded.step)
    sharded.close()
    for kind in (torch.optim.Adafactor, getattr(torch.optim, "Muon", torch.optim.SparseAdam)):
        matrices = [p for p in model.parameters() if p.dim() == 2]
        refuses(f"{kind.__name__} is not known", lambda kind=kind, on=matrices: ShardedStep(kind(on), model))
    refuses("complex parameters; 2", lambda: both(Mixed, "sgd")[3].clip_grad_norm_(1.0, 1.0))


def states_refused() -> None:
    """What does not fit is refused before anything is taken."""
    model = plain()
    sharded = ShardedStep(OPTIMIZERS["adamw"](groups_of(model)), model)
    loss_of(model, 0).backward()
    sharded.step()
    good = sharded.state_dict()
    for words, change in (
        ("has shape (1,)", {"exp_avg": torch.zeros(1)}),
        ("'step' is not the same", {"step": torch.tensor(9.0)}),
        ("only some parameters", {"more": 1}),
    ):
        bad = copy.deepcopy(good)
        bad["state"][0].update(change)
        refuses(words, lambda bad=bad: sharded.load_state_dict(bad))
    assert all(
        torch.equal(good["state"][i][k], v) for i, one in sharded.state_dict()["state"].items() for k, v in one.items()
    )


class Held(nn.Module):
    """Reads a parameter past its module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.held = [self.layer.weight]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.float(), self.held[0])


def early_reads() -> None:
    """A forward pass that does not wait is found out by its backward pass, also without averaging."""
    for waits in (True, False):
        model = Held()
        sharded = ShardedStep(torch.optim.SGD([model.layer.weight]), model)
        loss_of(model, 0).backward()
        sharded.step()
        if waits:
            sharded.wait()
            loss_of(model, 1).backward()
            sharded.step()
        with sharded.no_sync():
            refuses("before they arrived (layer.weight)", lambda: loss_of(model, 1).backward())  # noqa: B023
        sharded.zero_grad()
        loss_of(model, 1).backward()
        sharded.step()
        refuses("before they arrived (layer.weight)", lambda: loss_of(model, 1).backward())  # noqa: B023
    model.layer.weight.data = model.layer.weight.data.clone()
    sharded.zero_grad()
    refuses("other memory", lambda: loss_of(model, 1).backward())


def failures() -> None:
    """An error in forward or in backward on all ranks, a pass without step, two forward passes for one backward."""
    wrapped, ordinary, other, sharded = both(plain, "adamw")

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, __: Tensor) -> Tensor:
            raise ValueError("bad")

    def failing() -> Tensor:
        return other[1:](Bad.apply(other[0](batch(0)))).sum()

    for step in range(STEPS):
        ordinary.zero_grad()
        (loss_of(wrapped, step) + loss_of(wrapped, step + 50)).backward()
        ordinary.step()
        try:
            other(torch.tensor([[99]]))
        except IndexError:
            pass
        else:
            raise AssertionError("no error in forward")
        with torch.no_grad():
            loss_of(other, 3)
        try:
            failing().backward()
        except ValueError:
            sharded.zero_grad()
        else:
            raise AssertionError("no error in backward")
        loss_of(other, 9).backward()
        sharded.zero_grad()  # not used
        (loss_of(other, step) + loss_of(other, step + 50)).backward()
        sharded.step()
        if step % 2:
            sharded.zero_grad()
            sharded.wait()
    same(wrapped, other, "failures")


def forgotten() -> None:
    """Who drops the object while parameters are on their way has them all the same."""
    wrapped, ordinary, other, sharded = both(plain, "adamw")
    loss_of(wrapped, 0).backward()
    ordinary.step()
    loss_of(other, 0).backward()
    sharded.step()
    held = list(dict.values(other[1]._parameters))
    del sharded
    assert not any(isinstance(m._parameters, GuardedParameters) for m in other.modules())
    assert all(torch.equal(a, b) for a, b in zip(held, wrapped.module[1].parameters(), strict=True))
    same(wrapped, other, "forgotten")


CASES = (
    accumulation, clipping, scaling, scheduled, compiled, refusals, states_refused, early_reads, failures, forgotten,
)  # fmt: skip


def main() -> None:
    dist.init_process_group("hccl_py")
    for make in (plain, Attention, Recurrent, Mixed):
        steps(make, "adamw")
    for optimizer in OPTIMIZERS:
        steps(plain, optimizer)
    steps(Attention, "sgd", overlap=False)
    for case in CASES:
        case()
    wrapped, _, other, _ = both(plain, "sgd")
    dist.barrier()
    dist.destroy_process_group()
    same(wrapped, other, "after the group")
    print(f"PASSED {checked}: ShardedStep")


if __name__ == "__main__":
    main()
