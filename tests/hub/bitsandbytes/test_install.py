"""``install`` and ``uninstall``; layers that stay as they are stored; the founding reports with the real packages."""

import copy
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

bnb = pytest.importorskip("bitsandbytes")
import bitsandbytes.nn.modules as peer  # noqa: E402

import rung  # noqa: E402
from rung.cli import exec_hooks  # noqa: E402
from rung.core.errors import SoftwareMissing  # noqa: E402
from rung.hub.bitsandbytes import guarded, install, uninstall  # noqa: E402
from rung.hub.bitsandbytes.kernels import KERNELS  # noqa: E402
from tests.exec.helped import helped  # noqa: E402
from tests.hub.bitsandbytes import replaceable  # noqa: E402

pytestmark = replaceable

PROGRAMS = Path(__file__).parent / "programs"
GEMM_EX = (
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, "
    "CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F, CUBLAS_GEMM_DFALT_TENSOR_OP)`"
)
IGEMMLT = "igemmlt not available (probably built with NO_CUBLASLT)"


@pytest.fixture(autouse=True)
def _put_back():
    yield
    uninstall()


@pytest.fixture
def bf16_processor(monkeypatch):
    """A processor for which bitsandbytes repacks weights in place."""
    for holder in (peer, bnb.functional):
        monkeypatch.setattr(holder, "has_avx512bf16", lambda: True)
    yield
    uninstall()  # before what it puts back is undone itself


def layer(nested=False):
    torch.manual_seed(0)
    linear = bnb.nn.Linear4bit(128, 64, bias=False, quant_type="nf4", compress_statistics=nested)
    return linear.to("cpu").eval()


def decoded(module):
    return bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)


def by_rung():
    """Return whether operators are rung's: bitsandbytes has none of that name on a CPU."""
    try:
        torch.ops.bitsandbytes.int8_double_quant(torch.ones(2, 4))
    except NotImplementedError:
        return False
    return True


def test_only_install_acts_and_uninstall_puts_back():
    assert not by_rung()
    before = (peer.has_avx512bf16, peer._convert_weight_packed_for_cpu, bnb.functional.has_avx512bf16)
    for _ in range(2):
        install()
        install()
        assert by_rung()
        assert not peer.has_avx512bf16()
        uninstall()
        uninstall()
        assert not by_rung()
    assert before == (peer.has_avx512bf16, peer._convert_weight_packed_for_cpu, bnb.functional.has_avx512bf16)


def test_before_bitsandbytes_is_imported():
    """Two programs in one: what is taken back before the import never happens."""
    program = """
import sys, torch
from rung.hub.bitsandbytes import install, uninstall
install(); uninstall(); install(); install()
assert "bitsandbytes" not in sys.modules
import bitsandbytes
torch.ops.bitsandbytes.int8_double_quant(torch.ones(2, 4))
uninstall()
try:
    torch.ops.bitsandbytes.int8_double_quant(torch.ones(2, 4))
except NotImplementedError:
    print("right")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:rung", "-c", program], capture_output=True, text=True
    )
    assert done.stdout == "right\n", done.stderr
    assert "Overriding a previously registered kernel" not in done.stderr


def test_a_torch_that_cannot_replace_kernels(monkeypatch):
    monkeypatch.setattr(torch.library.Library, "impl", lambda self, name, kernel, key="", *, with_keyset=False: None)
    with pytest.raises(SoftwareMissing, match="cannot replace the kernels"):
        install()


def test_every_operator_has_a_kernel():
    registered = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("bitsandbytes::")]
    assert {name.removeprefix("bitsandbytes::") for name in registered} == set(KERNELS)


def test_the_peer_repacks_and_rung_does_not(bf16_processor):
    spoilt, x = layer(), torch.randn(3, 128)
    want = decoded(spoilt).clone()
    spoilt(x)
    assert spoilt.weight.quant_state.packing_format_for_cpu
    install()
    linear = layer()
    bits = linear.weight.data.clone()
    y = linear(x)
    assert torch.equal(linear.weight.data, bits)
    assert torch.equal(decoded(linear), want)
    torch.testing.assert_close(y, x @ want.T, rtol=1e-5, atol=1e-5)
    # what had been repacked has its codes again; its scales were rounded to bf16 then
    assert torch.equal(spoilt.weight.data, bits)
    torch.testing.assert_close(decoded(spoilt), want, rtol=2**-8, atol=0)
    torch.testing.assert_close(spoilt(x), x @ decoded(spoilt).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_gradients_after_evaluation(bf16_processor, nested):
    linear, x = layer(nested), torch.randn(3, 128)
    install()
    linear(x)
    for training in (True, False):
        inputs = x.clone().requires_grad_()
        linear.train(training)(inputs).sum().backward()
        torch.testing.assert_close(inputs.grad, decoded(linear).sum(0).expand(3, 128), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", True)])
def test_an_adapter_without_a_difference_changes_nothing(kind, nested, dtype):
    """Merged by PEFT: with nested scales, or decoded to 16 bits, encoding again gives others without ``install``."""
    install()
    torch.manual_seed(0)
    linear = bnb.nn.Linear4bit(192, 256, bias=False, quant_type=kind, compress_statistics=nested)
    linear.weight.data[:2] = 0
    model = nn.Sequential(linear.to(dtype).to("cpu"))
    model.is_loaded_in_4bit = True

    def state(layer):
        codes = {"weight": layer.weight.data.clone()} if kind == "nf4" else {}  # fp4 has two zeros
        return {"values": decoded(layer), **codes, **layer.weight.quant_state.as_dict(packed=True)}

    want = state(linear)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["0"]))
    assert type(model.base_model.model[0]).__module__ == "peft.tuners.lora.bnb"
    twin = copy.deepcopy(model)
    merged = model.merge_and_unload()[0]
    got = state(merged)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], value) for name, value in want.items())
    with torch.no_grad():
        twin.base_model.model[0].lora_B["default"].weight.add_(0.01)
    changed = twin.merge_and_unload()[0]
    assert not torch.equal(changed.weight.data, merged.weight.data)
    assert not torch.equal(changed.weight.quant_state.absmax, merged.weight.quant_state.absmax)


@pytest.mark.parametrize("how", ["deepcopy", "state_dict"])
def test_layers_are_copied_and_saved_as_they_were(bf16_processor, how):
    install()
    linear = layer()
    linear(torch.randn(3, 128))
    if how == "deepcopy":
        other = copy.deepcopy(linear)
        assert torch.equal(other.weight.data, linear.weight.data)
        assert torch.equal(other(torch.eye(128)), linear(torch.eye(128)))
        return
    saved = linear.state_dict()
    uninstall()
    plain = layer().state_dict()
    assert saved.keys() == plain.keys()
    assert all(torch.equal(saved[name], plain[name]) for name in plain)


def test_embeddings_and_int8_layers():
    table = torch.randn(32, 64)
    found = []
    for act in (uninstall, install):
        act()
        embedding = bnb.nn.Embedding4bit(32, 64, quant_type="nf4")
        embedding.load_state_dict({"weight": table})
        int8 = bnb.nn.Linear8bitLt(64, 32, bias=False, has_fp16_weights=False, threshold=6.0)
        int8.load_state_dict({"weight": table})
        embedding.to("cpu"), int8.to("cpu").eval()
        x = torch.linspace(-3, 9, 5 * 64).view(5, 64).half()
        found.append((embedding(torch.arange(32)), int8(x), int8.weight.data))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][2], found[1][2])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=2e-3, atol=2e-2)
    want = x.float() @ (int8.weight.data * (int8.state.SCB / 127)[:, None]).T
    assert float((found[1][1] - want).norm() / want.norm()) < 0.01


def test_an_optimizer_goes_on_with_rung():
    p = [nn.Parameter(torch.linspace(-1, 1, 8192)) for _ in range(2)]
    optimizers = [bnb.optim.AdamW8bit([each], lr=1e-2) for each in p]
    for step in range(4):
        for which, act in ((0, uninstall), (1, install if step > 1 else uninstall)):
            act()
            p[which].grad = torch.sin(torch.arange(8192.0) * (step + 1))
            optimizers[which].step()
    torch.testing.assert_close(*p, rtol=1e-5, atol=1e-6)
    first, second = (o.state[each] for o, each in zip(optimizers, p, strict=True))
    assert torch.equal(first["state2"], second["state2"])


def test_on_a_gpu_rung_computes_what_was_refused():
    """The library's key for tensors without data stands for a GPU's."""
    library, dtypes = torch.library.Library("rung_guard_test", "DEF"), []
    library.define("double(Tensor x) -> Tensor")

    def refuses(x):
        dtypes.append(x.dtype)
        if x.dtype is torch.int32:
            raise ValueError("a bug")
        raise RuntimeError(GEMM_EX)

    library.impl("double", refuses, "CPU")
    op = torch.ops.rung_guard_test.double.default
    guard = torch.library.Library("rung_guard_test", "IMPL", "BackendSelect")
    guard.impl("double", guarded(op, lambda x: 2 * x), with_keyset=True)
    x = torch.ones(2, dtype=torch.float16)
    assert torch.equal(op(x), 2 * x)
    assert torch.equal(op(x), 2 * x)
    assert dtypes == [torch.float16]  # remembered
    with pytest.raises(ValueError, match="a bug"):
        op(torch.ones(2, dtype=torch.int32))


CASES = {
    "merge_int8": ("V100", rung.Defect("int8_linear_matmul", "int8", NotImplementedError, IGEMMLT), "NO_CUBLASLT"),
    "t5_4bit": ("RTX 2080 Ti", rung.Defect("matmul", "f16", RuntimeError, GEMM_EX), "cublasGemmEx"),
}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    def call(name):
        monkeypatch.setattr(sys, "argv", [name, str(tmp_path / name)])
        runpy.run_path(str(PROGRAMS / f"{name}.py"))
        return [
            float(value == "True") if value in ("True", "False") else float(value)
            for value in capsys.readouterr().out.split()
        ]

    return call


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_the_reports_die_without_and_pass_with_rung(name, run, tmp_path):
    card, defect, words = CASES[name]
    with rung.simulate(card, defects=[defect]), pytest.raises((RuntimeError, NotImplementedError), match=words):
        run(name)
    install()
    with helped(tmp_path / "notes", card, defects=[defect]):
        found = run(name)
    uninstall()
    assert found == pytest.approx(run(name), rel=0.05, abs=0.05)


def test_an_operator_that_the_card_refuses_itself(tmp_path):
    """As ``rung exec`` installs it, and not where it only explains."""
    exec_hooks.bitsandbytes({"strict": "yes"})
    assert not by_rung()
    exec_hooks.bitsandbytes({})
    assert by_rung()
    a = torch.randint(-128, 127, (20, 64), dtype=torch.int8)
    card, defect, _ = CASES["merge_int8"]
    with helped(tmp_path / "notes", card, defects=[defect]):
        got = torch.ops.bitsandbytes.int8_linear_matmul(a.cuda(), a.cuda()).cpu()
    assert torch.equal(got, a.int() @ a.int().T)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_reports_under_rung_exec(name, tmp_path):
    card, defect, words = CASES[name]
    defect_text = f"{defect.op} {defect.dtype} {defect.exception.__name__}: {defect.text}"
    program = [sys.executable, str(PROGRAMS / f"{name}.py"), str(tmp_path / "model")]
    start = "from rung.cli.app import main; main()"
    for strict in (["--strict"], []):
        options = ["exec", *strict, "--device", f"sim:{card}", "--defect", defect_text]
        done = subprocess.run([sys.executable, "-c", start, *options, "--", *program], capture_output=True, text=True)
        assert (done.returncode == 0) == (not strict), done.stderr
        ends = f'File "{program[1]}", line' in done.stderr  # bitsandbytes prints a traceback of its own without CUDA
        assert ends == bool(strict), done.stderr
        assert not strict or words in done.stderr  # else it is the reason of a step down, which is said too
