"""Where everything lies: what torch makes, moves, saves, shares and draws, on the host and on cuda. Asserts alone."""

import copy
import io
import pickle
import threading

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

HOST, CARD = torch.device("cpu"), torch.device("cuda:0")


def lie(device, *tensors):
    for number, tensor in enumerate(tensors):
        assert tensor.device == device, (number, tensor.device)
        assert tensor.is_cuda is (device == CARD)
        assert tensor.get_device() == (0 if device == CARD else -1)


assert torch.cuda.is_available()
assert torch.cuda.device_count() == 1
assert torch.cuda.get_device_name(torch.cuda.device(0)) == torch.cuda.get_device_properties("cuda").name
assert torch.cuda.get_device_capability() >= (8, 0)
assert torch.cuda.is_bf16_supported()
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total

x = torch.randn(3, 4)
c = x.cuda()
lie(HOST, x, x + 1, x.T, x[0], x.half(), x.clone(), x.new_zeros(2), x.new_tensor([1]), x.new(2), torch.zeros_like(x))
lie(HOST, torch.Tensor(2, 3), torch.FloatTensor([1]), torch.from_numpy(np.ones(2)), torch.as_tensor(np.ones(2)))
lie(HOST, torch.frombuffer(bytearray(4), dtype=torch.uint8), torch.cat([x, x]), torch.stack((x, x)), c.cpu())
lie(HOST, x.to_sparse(), torch.tensor(2.0) * 3, 2 - torch.tensor(2.0), x.sum())
lie(
    CARD,
    c,
    c + 1,
    c + 1.5,
    c.T,
    c[0],
    c.half(),
    c.new_zeros(2),
    c.new_tensor([1]),
    c.new(2),
    torch.zeros_like(c),
    c.sum(),
)
lie(
    CARD,
    torch.zeros(2, device="cuda"),
    torch.ones(2).to(0),
    x.to(c),
    x.to(CARD, torch.half),
    torch.cuda.FloatTensor([1]),
)
lie(CARD, torch.tensor(0.5) * c.sum(), c[torch.tensor([0, 1])], torch.as_tensor(x, device="cuda"), c.to_sparse())
lie(HOST, x[torch.tensor([0])], copy.deepcopy(x), pickle.loads(pickle.dumps(x)), torch.zeros_like(c, device="cpu"))
lie(CARD, copy.deepcopy(c), pickle.loads(pickle.dumps(c)), torch.zeros_like(x, device="cuda"))
assert (x.type(), c.type(), x.half().type()) == ("torch.FloatTensor", "torch.cuda.FloatTensor", "torch.HalfTensor")
assert isinstance(x, torch.FloatTensor)
assert not isinstance(c, torch.FloatTensor)
assert isinstance(c, torch.cuda.FloatTensor)
lie(CARD, x.type(torch.cuda.HalfTensor), x.type("torch.cuda.DoubleTensor"), c.type(torch.float64))
lie(HOST, c.type(torch.HalfTensor), x.type("torch.DoubleTensor"), x.type(torch.LongTensor))
assert "device='cuda:0'" in repr(c)
assert "device" not in repr(x)

# a copy is a copy: what changes there does not change here
c.zero_()
assert x.abs().sum() > 0
kept = c.cpu()
c.fill_(1)
assert kept.sum() == 0
x.copy_(c)
lie(HOST, x, x.add_(0), torch.mul(x, 1, out=torch.empty(0)))
lie(CARD, c.add_(torch.zeros(())), torch.mul(c, 1, out=torch.empty(0, device="cuda")))
assert np.asarray(x).sum() == 12

layer = torch.nn.Linear(4, 2)
lie(HOST, layer.weight, layer(x))
layer.cuda()
lie(CARD, layer.weight, layer(x.cuda()), next(torch.nn.LSTM(4, 4).cuda().parameters()))
leaf = torch.ones(3, 4, requires_grad=True)
layer(leaf.cuda()).sum().backward()
lie(CARD, layer.weight.grad)
lie(HOST, leaf.grad)
with torch.device("cuda"):
    lie(CARD, torch.ones(2), torch.nn.Linear(2, 2).weight)
torch.set_default_device("cuda")
lie(CARD, torch.arange(3), torch.tensor([1.0]))
torch.set_default_device("cpu")
lie(HOST, torch.arange(3), torch.tensor([1.0]))
with torch.inference_mode():
    lie(HOST, torch.nn.functional.linear(x, x), x.reshape(-1))
    lie(CARD, torch.nn.functional.linear(c, c), c.reshape(-1))
lie(HOST, torch.func.vmap(lambda row: row.sin())(x))

for location, (host, card) in {
    None: (HOST, CARD), "cpu": (HOST, HOST), "cuda": (CARD, CARD), lambda storage, where: storage: (HOST, HOST)
}.items():  # fmt: skip
    file = io.BytesIO()
    torch.save({"host": x, "card": c, "layer": layer.state_dict()}, file)
    file.seek(0)
    found = torch.load(file, map_location=location)
    lie(host, found["host"])
    lie(card, found["card"], found["layer"]["weight"])

for workers in (0, 1):
    for (batch,) in DataLoader(TensorDataset(torch.arange(4.0)), 2, num_workers=workers, pin_memory=True):
        lie(HOST, batch)
        assert batch.is_pinned()
        lie(CARD, batch.cuda(non_blocking=True))

found = []
thread = threading.Thread(target=lambda: found.append((x * 2, c * 2, torch.ones(2), torch.ones(2, device="cuda"))))
thread.start()
thread.join()
lie(HOST, *found[0][::2])
lie(CARD, *found[0][1::2])

# chance: one stream of numbers, the processor's
torch.manual_seed(5)
first = torch.rand(2), torch.rand(2, device="cuda")
torch.manual_seed(5)
assert torch.equal(torch.cat((first[0], first[1].cpu())), torch.rand(4))
generator = torch.Generator("cuda").manual_seed(1)
assert torch.equal(
    torch.rand(2, device="cuda", generator=generator).cpu(), torch.rand(2, generator=torch.manual_seed(1))
)
state = torch.cuda.get_rng_state()
one = torch.rand(1, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(one, torch.rand(1, device="cuda"))

with torch.autocast("cuda"):
    assert layer(c).dtype is torch.float16
    assert torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", enabled=False):
        assert layer(c).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert layer(c).dtype is torch.float16
assert layer(c).dtype is torch.float32
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.autocast("cuda", dtype=torch.float16):
        assert layer(c).dtype is torch.float16
    assert layer(x.cuda()).dtype is torch.bfloat16
assert not torch.is_autocast_enabled("cpu")

stream, begin, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    begin.record()
    end.record()
torch.cuda.current_stream().wait_stream(stream)
end.synchronize()
assert begin.elapsed_time(end) >= 0
graph, out = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
with torch.cuda.graph(graph):
    doubled = out * 2
    doubled.add_(1)
out.fill_(5)
graph.replay()
assert doubled.tolist() == [11, 11, 11]
half = torch.ones(2, 2, device="cuda", dtype=torch.bfloat16)
assert torch.mm(half, half, out_dtype=torch.float32).dtype is torch.float32
assert torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
print("done")
