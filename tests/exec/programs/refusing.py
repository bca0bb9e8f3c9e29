"""A program on a torch whose products of bfloat16 the processor refuses: forward, backward, threads, workers."""

import sys
import threading

import torch

REFUSAL = "\"addmm_impl_cpu_\" not implemented for 'BFloat16'"
library = torch.library.Library("aten", "IMPL", "CPU")


def refuse(tensor):
    if tensor.dtype is torch.bfloat16:
        raise RuntimeError(REFUSAL)


def mm(a, b):
    refuse(a)
    return torch.bmm(a[None], b[None])[0]


def addmm(bias, a, b, *, beta=1, alpha=1):
    refuse(a)
    return beta * bias + alpha * torch.bmm(a[None], b[None])[0]


library.impl("mm", mm)
library.impl("addmm", addmm)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        x = torch.full((2, 3), index + 1.0, dtype=torch.bfloat16)
        return x @ x.t()


if __name__ == "__main__":
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 4).bfloat16(), torch.randn(3, 8).bfloat16()
    exact = torch.nn.functional.linear(x.float(), layer.weight.float(), layer.bias.float())
    assert torch.equal(layer(x), exact.bfloat16())
    x.requires_grad_()
    layer(x).float().square().sum().backward()
    grad = 2 * exact.bfloat16().float()
    assert layer.weight.grad.dtype is x.grad.dtype is torch.bfloat16
    torch.testing.assert_close(layer.weight.grad.float(), grad.t() @ x.detach().float(), rtol=0.02, atol=0.02)
    torch.testing.assert_close(x.grad.float(), grad @ layer.weight.detach().float(), rtol=0.02, atol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.Linear(8, 4)(torch.randn(3, 8)).dtype is torch.bfloat16
    with torch.inference_mode():
        assert layer(x).dtype is torch.bfloat16
    found = []
    thread = threading.Thread(target=lambda: found.append(layer(x).dtype))
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]
    workers = 1 if "workers" in sys.argv else 0
    products = torch.cat(list(torch.utils.data.DataLoader(Rows(), num_workers=workers)))
    assert products[:, 0, 0].tolist() == [3.0, 12.0, 27.0, 48.0]
    mapped = torch.func.vmap(lambda row: layer(row[None])[0])(x.detach())
    torch.testing.assert_close(mapped, layer(x.detach()), rtol=0.02, atol=0.02)
    try:
        torch.ones(2, 3) @ torch.ones(2, 3)
    except RuntimeError as error:
        print(type(error).__name__)
