"""Further ways past the dispatcher: compilers, tracers, fake, sparse and nested tensors, transforms of functions."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
x = torch.randn(4, 8)
y = model(x)

assert torch.equal(torch.jit.script(model)(x), y)
assert torch.equal(torch.jit.trace(model, x)(x), y)
assert torch.equal(torch.export.export(model, (x,)).module()(x), y)
for backend in ("eager", "aot_eager"):
    compiled = torch.compile(model, backend=backend)
    assert torch.allclose(compiled(x), y, atol=1e-5)
    compiled(x).sum().backward()

with FakeTensorMode():
    assert torch.nn.Linear(3, 4)(torch.randn(2, 3)).shape == (2, 4)
assert torch.nn.Linear(3, 4, device="meta")(torch.randn(2, 3, device="meta")).shape == (2, 4)
assert torch.mm(x.to_sparse(), torch.randn(8, 2)).shape == (4, 2)
nested = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
assert (nested @ torch.randn(8, 3)).dim() == 3

gradients = torch.func.vmap(torch.func.grad(lambda w, row: (row @ w).sum()), in_dims=(None, 0))
assert torch.allclose(gradients(torch.randn(8, 2), x)[..., 0], x)
assert torch.func.hessian(lambda w: (x @ w).pow(2).sum())(torch.randn(8, 1)).shape == (8, 1, 8, 1)
checkpoint(model, x.requires_grad_(), use_reentrant=False).sum().backward()
assert x.grad.shape == x.shape
with profile() as profiled:
    model(x)
assert any("addmm" in row.key for row in profiled.key_averages())
print("done")
