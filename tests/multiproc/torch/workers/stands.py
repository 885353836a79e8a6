"""What stands on a process group, over hccl_py at two ranks: each against one process, or against gloo."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from checks import run_all, start
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from hccl_py.torch import HcclProcessGroup

RANK, SIZE = start()
GLOO = dist.new_group(backend="gloo")
MESH = init_device_mesh("cpu", (SIZE,))


def make() -> nn.Sequential:
    """The same model on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def device_mesh() -> None:
    assert isinstance(MESH.get_group(), HcclProcessGroup)
    flat = init_device_mesh("cpu", (SIZE, 1), mesh_dim_names=("data", "model"))
    x = torch.ones(3)
    dist.all_reduce(x, group=flat["data"].get_group())
    dist.all_reduce(x, group=flat.get_group("model"))
    assert (x == SIZE).all()


def zero_redundancy_optimizer() -> None:
    results = []
    for group in (dist.group.WORLD, GLOO):
        ddp = DistributedDataParallel(make(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            ddp.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.1
        )
        for step in range(3):
            torch.manual_seed(10 * step + RANK)
            ddp(torch.randn(5, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.consolidate_state_dict()
        results.append([parameter.detach() for parameter in ddp.parameters()])
    torch.testing.assert_close(*results)


def dtensors() -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    sharded = distribute_tensor(whole, MESH, [Shard(0)])
    assert sharded.to_local().shape[0] == 6 // SIZE
    assert torch.equal(sharded.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    assert torch.equal(sharded.redistribute(placements=[Replicate()]).to_local(), whole)
    partial = DTensor.from_local(torch.ones(4, 2), MESH, [Partial()])
    assert (partial.redistribute(placements=[Shard(0)]).to_local() == SIZE).all()
    product = torch.matmul(sharded, distribute_tensor(torch.ones(2, 3), MESH, [Replicate()]))
    assert torch.equal(product.full_tensor(), whole @ torch.ones(2, 3))


def tensor_parallel() -> None:
    reference = make()
    parallel = parallelize_module(copy.deepcopy(reference), MESH, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(parallel(x), reference(x))


def checkpoint() -> None:
    """What FSDP2 saves in shards comes back in shards, and to a whole model of one process."""
    place = [tempfile.mkdtemp() if RANK == 0 else ""]
    dist.broadcast_object_list(place)
    model = make()
    fully_shard(model, mesh=MESH)
    dcp.save({"model": model.state_dict()}, checkpoint_id=place[0])
    other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    fully_shard(other, mesh=MESH)
    loaded = {"model": other.state_dict()}
    dcp.load(loaded, checkpoint_id=place[0])
    expected = make().state_dict()
    for name, value in loaded["model"].items():
        assert torch.equal(value.full_tensor(), expected[name]), name
    dist.barrier()
    if RANK == 0:
        shutil.rmtree(place[0])


def pipeline() -> None:
    model = make()
    part = nn.Sequential(*(list(model)[:2] if RANK == 0 else list(model)[2:]))
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    target = torch.randn(8, 4, generator=torch.Generator().manual_seed(3))
    stage = PipelineStage(part, RANK, SIZE, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    if RANK == 0:
        schedule.step(x)
    else:
        out = schedule.step(target=target)
        torch.testing.assert_close(out, model(x))
    reference = make()
    nn.functional.mse_loss(reference(x), target).backward()
    layer = reference[0] if RANK == 0 else reference[2]
    torch.testing.assert_close(part[0].weight.grad, layer.weight.grad)


def compiled_collectives() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        summed = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(summed + RANK, 0, dist.group.WORLD)
        return funcol.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD) + 1

    x = torch.full((4,), RANK + 1.0)
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), program(x))


def again_after_destroy() -> None:
    for turn in range(2):
        dist.destroy_process_group()
        dist.init_process_group("hccl_py", init_method=f"file://{PLACE}/{turn}", rank=RANK, world_size=SIZE)
        x = torch.ones(2)
        dist.all_reduce(x)
        assert (x == SIZE).all()


box = [tempfile.mkdtemp() if RANK == 0 else ""]
dist.broadcast_object_list(box)
PLACE = Path(box[0])
run_all(
    {
        check.__name__: check
        for check in (
            device_mesh, zero_redundancy_optimizer, dtensors, tensor_parallel, checkpoint, pipeline,
            compiled_collectives, again_after_destroy,
        )
    }
)  # fmt: skip
dist.destroy_process_group()
if RANK == 0:
    shutil.rmtree(PLACE)
