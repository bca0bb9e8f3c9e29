"""Quantized layers under FSDP2: one process with gloo is enough for sharding, gathering and freeing parameters."""

import copy

import pytest
import torch
from torch import distributed, nn

import rung
from rung.core.errors import UsageError


@pytest.fixture
def mesh(tmp_path):
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def shards_integers(mesh):
    """Return whether torch's own FSDP2 takes parameters of integers, as stored weights are."""
    module = nn.Module()
    module.codes = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    try:
        distributed.fsdp.fully_shard(module, mesh=mesh)
    except RuntimeError:
        return False
    return True


def test_sharded_layers_compute_the_same(mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not shards_integers(mesh):
        pytest.skip("this torch shards parameters of floating point only")
    torch.manual_seed(0)
    plain = rung.quantize(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), "nf4")
    cast, sharded, inputs = copy.deepcopy(plain), copy.deepcopy(plain), []
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    for model in (plain, sharded, sharded):
        x = torch.linspace(-1, 1, 256).view(4, 64).requires_grad_()
        y = model.train()(x)
        y.square().sum().backward()
        inputs.append((y.detach(), x.grad))
    torch.testing.assert_close(inputs[1], inputs[0])
    torch.testing.assert_close(inputs[2], inputs[0])
    with torch.no_grad():
        torch.testing.assert_close(sharded.eval()(x), plain.eval()(x))
    fully_shard(cast, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(UsageError, match=r"in torch.bfloat16 and should be .* in torch.float32"):
        cast(x)
