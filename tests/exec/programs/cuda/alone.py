"""Features for GPUs alone: NCCL, DDP, the compiler, a device that is not there, CUDA code to build."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

assert torch.cuda.get_device_capability()[0] >= 8
net = torch.nn.Linear(4, 2).cuda()
quick = torch.compile(net, mode="max-autotune")


@torch.compile
def double(x):
    return x * 2


x = torch.ones(3, 4, device="cuda")
assert torch.equal(quick(x), net(x))
assert double(x).sum() == 24
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("nccl", init_method=f"file://{folder}/start", rank=0, world_size=1)
    torch.cuda.set_device(0)
    spread = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0], output_device=0)
    spread(x).sum().backward()
    total = net.weight.grad.clone()
    dist.all_reduce(total)
    dist.barrier(device_ids=[0])
    dist.destroy_process_group()
assert total.device.type == "cuda"
print(total.tolist())
try:
    cpp_extension.CUDAExtension("warp", ["warp.cu"])
except OSError as error:
    print(type(error).__name__)
if len(sys.argv) > 1:
    torch.ones(1, device=sys.argv[1])
