"""hccl_py.torch's DistributedDataParallel with compression: partitions, restarts, other worlds, joins.

``ddp_compression.py``: all checks. ``ddp_compression.py save|resume FOLDER``: the first steps, ended by SIGKILL; the
others, in new processes, compared with a training that was never ended.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checks import refuses, run_all, start
from torch import Tensor, nn

from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.policy import Ramp, Switching
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.scheduler.buckets import Bucket, BucketPlan, Span
from hccl_py.torch import DistributedDataParallel

os.environ["HCCL_PY_DETERMINISTIC"] = "1"
RANK, SIZE = start(timeout_s=250.0)
STEPS = 8
BLOCKS = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "sign")
OTHERS = ("topk:0.05", "threshold:0.001", "randomk:0.1", "blocksparse:0.3", "powersgd:2", "lossless")
SWITCH = "switching"
SMALL_BUCKETS, LARGE_BUCKETS = 0.008, 1.0  # MiB


class Training:
    """A regression that any rank can check: the teacher is known."""

    def __init__(self, compression: Any, bucket_mb: float = SMALL_BUCKETS, group: Any = None, **options: Any) -> None:
        torch.manual_seed(1)
        self.teacher = nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 32))
        self.module = nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 32))
        what = Switching(parse_codec("int8"), parse_codec("int4"), 2, 0.5) if compression == SWITCH else compression
        self.model = DistributedDataParallel(
            self.module, process_group=group, bucket_cap_mb=bucket_mb, compression=what, **options
        )
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)

    def steps(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            self.optimizer.zero_grad()
            losses.append(self.backward(step))
            self.optimizer.step()
        return losses

    def backward(self, step: int) -> float:
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step * SIZE + RANK))
        loss = nn.functional.mse_loss(self.model(x), self.teacher(x).detach())
        loss.backward()
        return loss.item()

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])

    def state(self) -> Any:
        parts = (self.module.state_dict(), self.optimizer.state_dict(), self.model.compression_state())
        return copy.deepcopy(parts)

    def load(self, state: Any) -> None:
        self.module.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        self.model.load_compression_state(state[2])


def plan_of(training: Training, cut: int) -> BucketPlan:
    """Parameters from the last on, one a bucket, the first one cut at ``cut`` elements (0: nowhere)."""
    sizes = [p.numel() for p in training.module.parameters()]
    buckets = [Bucket(DType.FLOAT32, (Span(k, 0, sizes[k]),)) for k in range(len(sizes) - 1, 0, -1)]
    spans = [Span(0, 0, cut), Span(0, cut, sizes[0] - cut)] if cut else [Span(0, 0, sizes[0])]
    return BucketPlan((*buckets, *(Bucket(DType.FLOAT32, (span,)) for span in spans)))


def same_everywhere(values: Tensor) -> None:
    everyone = [torch.zeros_like(values) for _ in range(SIZE)]
    dist.all_gather(everyone, values)
    assert all(torch.equal(each, values) for each in everyone)


def trains_as_exact_does() -> None:
    exact = Training(None).steps(0, STEPS)
    for text in ("int8", "topk:0.1", "powersgd:2"):
        training = Training(text)
        losses = training.steps(0, STEPS)
        same_everywhere(training.flat())
        assert losses != exact, text
        assert losses[-1] < exact[0] - (exact[0] - exact[-1]) * 0.4, (text, losses, exact)
        assert training.model.compressor.step == STEPS


def lossless_trains_bit_for_bit_as_exact_does() -> None:
    exact, lossless = Training(None), Training("lossless")
    assert exact.steps(0, STEPS) == lossless.steps(0, STEPS)
    assert torch.equal(exact.flat(), lossless.flat())
    assert lossless.model.compression_state()["errors"] == {}


def another_partition_changes_no_bit() -> None:
    """With every codec; whole parameters, and parts where the codec allows them, from one step to the next."""
    for text in (*BLOCKS, *OTHERS, SWITCH):
        fixed, moved = Training(text), Training(text)
        curve = fixed.steps(0, 3)
        assert curve == moved.steps(0, 3), text
        moved.model.adopt(plan_of(moved, 256 if moved.model.compressor.cuts else 0))
        curve += fixed.steps(3, 5)
        assert curve[3:] == moved.steps(3, 5), text
        moved.model.adopt(plan_of(moved, 1024 if moved.model.compressor.cuts else 0))
        assert fixed.steps(5, STEPS) == moved.steps(5, STEPS), text
        assert torch.equal(fixed.flat(), moved.flat()), text
        one_bucket = Training(text, LARGE_BUCKETS)
        assert one_bucket.steps(0, 5) == curve, text


def cuts_that_would_change_bits_are_refused() -> None:
    training = Training("int8")
    refuses(ConfigError, "multiples of 256", lambda: training.model.adopt(plan_of(training, 100)))
    training = Training("topk:0.1")
    refuses(ConfigError, "cut nowhere", lambda: training.model.adopt(plan_of(training, 256)))
    assert all(len(bucket.spans) == 1 for bucket in training.model.bucket_plan.buckets[:1])


def saved_and_resumed_is_the_same() -> None:
    for text in (*BLOCKS, *OTHERS, SWITCH, "auto"):
        whole, first = Training(text), Training(text)
        curve = whole.steps(0, 4)
        assert curve == first.steps(0, 4) or text == "auto"
        second = Training(text, LARGE_BUCKETS if text != "auto" else SMALL_BUCKETS)
        second.load((first if text != "auto" else whole).state())
        assert second.steps(4, STEPS) == whole.steps(4, STEPS), text
        assert torch.equal(whole.flat(), second.flat()), text


def a_world_of_another_size_goes_on() -> None:
    first = Training("int4")
    first.steps(0, 4)
    states: list[Any] = [None] * SIZE
    dist.all_gather_object(states, first.state())
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    second = Training("int4", group=alone)
    second.load((*states[0][:2], [state[2] for state in states]))
    assert second.model.compressor.step == 4
    before = second.flat()
    second.optimizer.zero_grad()
    second.model(torch.zeros(1, 32)).mul(0).sum().backward()  # a gradient of zero: only errors come
    errors = [state[2]["errors"] for state in states]
    got = next(second.module.parameters()).grad.flatten()
    wanted = torch.zeros_like(got)
    for each in errors:
        for key, values in each.items():
            stage, parameter, offset = key.split("/")
            if parameter == "0":
                part = torch.from_numpy(values) / (SIZE if stage == "send" else 1)
                wanted[int(offset) : int(offset) + len(values)] += part
    assert wanted.abs().max() > 0 and torch.allclose(got, wanted, atol=1e-6), (got - wanted).abs().max()
    assert torch.equal(before, second.flat())
    losses = second.steps(4, STEPS)
    assert losses[-1] < losses[0]


def ranks_may_have_different_numbers_of_steps() -> None:
    training = Training("int8")
    with training.model.join():
        for step in range(3 + RANK):
            training.optimizer.zero_grad()
            training.backward(step)
            training.optimizer.step()
    same_everywhere(training.flat())
    assert training.model.compressor.step == 3 + SIZE - 1


def no_sync_sends_nothing() -> None:
    training = Training("int8")
    training.steps(0, 2)
    state = training.model.compression_state()
    with training.model.no_sync():
        training.backward(7)
    after = training.model.compression_state()
    assert after["next_step"] == 2
    assert all((after["errors"][key] == state["errors"][key]).all() for key in state["errors"])


def auto_is_exact_where_nothing_pays() -> None:
    auto, exact = Training("auto"), Training(None)
    losses = auto.steps(0, 4)
    same_everywhere(auto.flat())
    decisions = auto.model.compressor.reducer.auto.decisions.values()
    assert decisions  # with loaded cores the measured link may be anything
    if all(decision.codec is None for decision in decisions):
        assert losses == exact.steps(0, 4)


def options_count_and_mistakes_are_errors() -> None:
    ramp = Training("sign", compression_options={"ramp": Ramp(2)})
    assert ramp.steps(0, 3) == Training(None).steps(0, 3)
    assert ramp.steps(3, 5) != Training(None).steps(3, 5)
    refuses(ConfigError, 'do you mean "int8"', lambda: Training("int9"))
    refuses(ConfigError, "there are guard", lambda: Training("int8", compression_options={"rampe": 1}))
    refuses(ConfigError, "without compression", lambda: Training(None, compression_options={"seed": 1}))
    refuses(ConfigError, "made without", lambda: Training(None).model.compression_state())
    refuses(ConfigError, "is wanted", lambda: Training("int8").model.load_compression_state({}))
    refuses(ConfigError, "there can be one", lambda: Training("int8").model.register_comm_hook(None, print))
    assert Training("int4", compression_options={"seed": 1}).steps(0, 3) != Training("int4").steps(0, 3)


def save(folder: Path) -> None:
    for text in ("int4", SWITCH, "topk:0.05", "powersgd:2"):
        training = Training(text)
        training.steps(0, 4)
        torch.save(training.state(), folder / f"{text.replace(':', '_')}_{RANK}.pt")
    dist.barrier()
    print("SAVED", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def resume(folder: Path) -> None:
    for text in ("int4", SWITCH, "topk:0.05", "powersgd:2"):
        whole, second = Training(text), Training(text, LARGE_BUCKETS)
        whole.steps(0, 4)
        second.load(torch.load(folder / f"{text.replace(':', '_')}_{RANK}.pt", weights_only=False))
        assert second.steps(4, STEPS) == whole.steps(4, STEPS), text


if len(sys.argv) > 1:
    mode, place = sys.argv[1], Path(sys.argv[2])
    run_all({mode: lambda: (save if mode == "save" else resume)(place)})
else:
    run_all(
        {
            "trains": trains_as_exact_does,
            "lossless": lossless_trains_bit_for_bit_as_exact_does,
            "partitions": another_partition_changes_no_bit,
            "cuts": cuts_that_would_change_bits_are_refused,
            "resume": saved_and_resumed_is_the_same,
            "worlds": a_world_of_another_size_goes_on,
            "join": ranks_may_have_different_numbers_of_steps,
            "no_sync": no_sync_sends_nothing,
            "auto": auto_is_exact_where_nothing_pays,
            "options": options_count_and_mistakes_are_errors,
        }
    )
