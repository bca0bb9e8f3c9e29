"""Refusals are caught inside torch's dispatcher: forward, backward, autocast, in threads and in workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rung.exec import step_down
from rung.exec.report import read

PROGRAMS = Path(__file__).parent / "programs"
WATCHED = """
import runpy, sys
from rung.exec import step_down
from rung.exec.report import Notes
from rung.exec.step_down import Steps
steps = Steps(Notes(sys.argv[1]))
step_down.operations(steps, step_down.LIBRARIES)
step_down.composed(steps)
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def test_a_torch_that_refuses_bfloat16(tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    command = [sys.executable, "-W", "ignore", "-c", WATCHED, str(notes), str(PROGRAMS / "refusing.py"), "workers"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("RuntimeError\n", "")
    found = {op: count for (op, device, before, after, _), count in read(str(notes)).items() if after == "float32"}
    assert set(found) == {"mm", "addmm"}
    assert found["addmm"] > 4  # forward, autocast, inference mode, thread, vmap
    assert found["mm"] > 2  # the backward pass and a worker's own


@pytest.mark.slow
def test_the_rest_of_torch_is_not_disturbed(tmp_path):
    (tmp_path / "notes").touch()
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "notes"), str(PROGRAMS / "corners.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
    assert read(str(tmp_path / "notes")) == {}


def test_what_this_processor_refuses():
    code = (
        "import torch\n"
        "a = (torch.eye(3) * 4).bfloat16().requires_grad_()\n"
        "inverse = torch.linalg.inv(a); inverse.sum().backward()\n"
        "print(inverse.dtype, inverse.diag().tolist(), a.grad.diag().tolist())\n"
        "print(torch.linalg.svdvals(a.detach()).tolist(), torch.linalg.det(a.detach()).dtype)\n"
        "print(torch.cdist(a.half(), a.half()).dtype)\n"
        "print(torch.pdist(a).dtype, torch._standard_gamma(a).dtype, torch.linalg.eigvals(a.detach().half()).dtype)\n"
        "print(torch.linalg.inv(a.detach().to('meta')).dtype)\n"
        "a.new_ones(2, 3).inverse()"
    )
    command = [sys.executable, "-m", "rung", "exec", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    first, *rest = done.stdout.splitlines()
    assert first == "torch.bfloat16 [0.25, 0.25, 0.25] [-0.0625, -0.0625, -0.0625]"
    others = ["torch.float16", "torch.bfloat16 torch.bfloat16 torch.complex32", "torch.bfloat16"]
    assert rest == ["[4.0, 4.0, 4.0] torch.bfloat16", *others]
    assert "rung exec: linalg_inv_ex on cpu: bfloat16 → float32, once" in done.stderr
    assert "on meta" not in done.stderr
    assert "must be batches of square matrices" in done.stderr
    assert done.returncode == 1


SIXTEEN = """
import torch
from torch import linalg
g = torch.Generator().manual_seed(0)
a, x = torch.eye(6) * 3 + torch.randn(6, 6, generator=g) / 3, torch.randn(12, generator=g)
b, square = torch.randn(6, 3, generator=g), a @ a.T
right = {
    "quantile": lambda a, x, b, s: torch.quantile(x, 0.3),
    "quantiles": lambda a, x, b, s: torch.nanquantile(x, x.new_tensor([0.25, 0.5])),
    "pinv": lambda a, x, b, s: linalg.pinv(a), "hermitian": lambda a, x, b, s: linalg.pinv(s, hermitian=True),
    "rank": lambda a, x, b, s: linalg.matrix_rank(a), "lstsq": lambda a, x, b, s: linalg.lstsq(a, b).solution,
    "logdet": lambda a, x, b, s: torch.logdet(s), "spectral": lambda a, x, b, s: linalg.norm(a, 2),
    "nuclear": lambda a, x, b, s: linalg.norm(a, "nuc"),
    "dirichlet": lambda a, x, b, s: torch.distributions.Dirichlet(x.abs() + 1).sample().sum(),
    "binomial": lambda a, x, b, s: torch.binomial(x.abs().ceil(), x * 0 + 1),
}
for name, f in right.items():
    wanted = f(*(t.double() for t in (a, x, b, square)))
    for dtype in (torch.float16, torch.bfloat16):
        with torch.inference_mode(name == "rank"):
            found = f(*(t.to(dtype) for t in (a, x, b, square)))
        expected = wanted.dtype if name == "rank" else dtype
        if found.dtype != expected or (found - wanted).abs().max() > 0.03 * wanted.abs().max():
            print(name, dtype, found, wanted)
h = x.half().requires_grad_()
torch.quantile(h, 0.5).backward()
print(h.grad.dtype, h.grad.sum().item())
try: torch.quantile(h, 7.0)
except RuntimeError as error: print(error)
"""


def test_what_torch_makes_of_other_operations_and_refuses_before():
    command = [sys.executable, "-m", "rung", "exec", "--", sys.executable, "-c", SIXTEEN]
    done = subprocess.run(command, capture_output=True, text=True)
    first, last = done.stdout.splitlines()
    assert first == "torch.float16 1.0"
    assert "q" in last
    assert "[0, 1]" in last
    assert "rung exec: quantile.scalar on cpu: float16 → float32" in done.stderr


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_processor_does_what_is_not_watched_there(dtype):
    a, b = torch.ones(2, 3, dtype=dtype), torch.ones(3, 2, dtype=dtype)
    assert (a @ b).dtype is dtype
    assert torch.addmm(torch.ones(2, dtype=dtype), a, b).dtype is dtype
    assert torch.bmm(a[None], b[None]).dtype is dtype
    x = torch.ones(1, 1, 4, 4, dtype=dtype, requires_grad=True)
    torch.nn.functional.conv2d(x, torch.ones(1, 1, 3, 3, dtype=dtype)).sum().backward()
    assert x.grad.dtype is dtype


def test_the_names_are_torchs():
    for name in (*step_down.LIBRARIES, *step_down.FUNCTIONS):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "BackendSelect"), name
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"), name
    for name in step_down.COMPOSED:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd"), name
