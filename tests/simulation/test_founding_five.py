"""The five failures that rung was founded on: each first fails as in its report, then runs."""

from __future__ import annotations

import copy
import math
import re

import gguf
import numpy as np
import pytest
import torch

import rung
from rung import formats
from rung.core.types import Capability, Case, Ladder, Level, Proof, Rung, StepClass
from rung.core.value import FrozenDict
from rung.diagnosis import classify
from rung.ops import LADDERS
from rung.ops.rasterize import Camera, Splats
from rung.ops.rasterize.self_check import splats
from rung.planning.solve import steps_down
from rung.run.binding import Binder, Linear
from rung.run.journal import Journal
from rung.simulation.cards import describe
from tests.planning.cards import gemma_2b
from tests.simulation import rungs
from tests.tiny import gguf_vocabulary, tiny_checkpoint, tiny_model

GEMM_EX = (
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, "
    "CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F, CUBLAS_GEMM_DFALT_TENSOR_OP)`"
)
CMMA = r"Cmma on inputs Float\(F16\) and outputs Float\(F32\) with shape m=16, n=16, k=16 not supported"
BF16 = "at::cuda::blas::gemm: not implemented for struct c10::BFloat16"
IGEMMLT = "igemmlt not available (probably built with NO_CUBLASLT)"


def weight(rows=64, columns=256, seed=3):
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32) / 16


def activations(columns, rows=5, seed=4):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def decibels(got, want):
    """How far the error lies below the values."""
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    return float(10 * torch.log10(want.square().sum() / (got - want).square().sum().clamp_min(1e-300)))


def floor_after(products, floor_db):
    """Return the rest of a format's floor after so many products in it: errors that do not depend on each other add as
    powers, 1 / SQNR of the output is the sum of theirs (Lin, Talathi and Annapureddy, arXiv:1511.06393)."""
    return floor_db - 10 * math.log10(products)


@pytest.fixture
def heard(monkeypatch):
    """Record inputs and outputs of every product of a bound linear, in their order."""
    pairs, call = [], Linear.__call__

    def listen(self, x):
        y = call(self, x)
        pairs.append((x.cpu(), y.cpu()))
        return y

    monkeypatch.setattr(Linear, "__call__", listen)
    return pairs


def at_the_floor(heard, model, floor_db):
    """Every product of a model that was heard equals that of the same input with the f32 weight, within the floor.

    A floor is that of a weight. The error of a product scatters around its weight's, the more the fewer activations
    there are: by 0.1 dB with 64 tokens, against the 0.4 dB that floors lie below what was measured.
    """
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for layer, (x, y) in zip(layers, heard, strict=True):
        assert decibels(y, x @ layer.weight.detach().T) > floor_db, layer
    return len(layers)


def steps(report):
    return [(s.rung, s.step, s.to) for s in report.steps]


def written(journal):
    return steps(journal.report(FrozenDict(), FrozenDict()))


def known(error):
    found = classify(error)
    assert found is not None
    return found.signature.step


class Through(torch.nn.Module):
    """A linear layer of a model, bound to a ladder."""

    weight = None

    def __init__(self, bound):
        super().__init__()
        self.bound = bound

    def forward(self, x):
        return self.bound(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def t5():
    import transformers

    config = transformers.T5Config(
        vocab_size=64, d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4, dropout_rate=0.0
    )
    torch.manual_seed(2)
    return transformers.T5EncoderModel(config).eval()


def replaced(model, make):
    """A copy of the model with every linear layer made anew."""
    result = copy.deepcopy(model)
    for name, module in list(result.named_modules()):
        if isinstance(module, torch.nn.Linear):
            parent, _, last = name.rpartition(".")
            setattr(result.get_submodule(parent), last, make(module))
    return result


def test_latte_the_text_encoder_in_four_bits_on_a_2080_ti(heard):
    encoder, ids = t5(), torch.arange(64).flip(0)[None]
    nf4 = formats.get("nf4")

    def quantized(layer):
        return formats.encode(layer.weight.detach().numpy(), nf4, "w")

    plain = replaced(encoder, lambda layer: _dense(formats.decode(quantized(layer))))
    refused = rung.Defect("matmul", "f16", RuntimeError, GEMM_EX)
    with torch.inference_mode(), rung.simulate("RTX 2080 Ti", defects=[refused]) as card:
        naive = copy.deepcopy(encoder).half().cuda()
        with pytest.raises(RuntimeError, match=r"CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx") as caught:
            naive(ids.cuda())
        assert known(caught.value) is StepClass.UNSUPPORTED

        journal = Journal()
        binder = Binder(card, journal, dtype="f16")
        running = replaced(encoder, lambda layer: Through(binder.linear(quantized(layer)))).cuda()
        got = running(ids.cuda()).last_hidden_state
        assert got.device.type == "cuda"
        assert written(journal) == [(rung, StepClass.BROKEN, "ref") for rung in ("cuda.stored", "torch.decode")]
    with torch.inference_mode():
        products = at_the_floor(heard, encoder, nf4.floor_db)
        torch.testing.assert_close(got.cpu(), plain(ids).last_hidden_state)
        assert decibels(got.cpu(), encoder(ids).last_hidden_state) > floor_after(products, nf4.floor_db)


def _dense(values):
    layer = torch.nn.Linear(values.shape[1], values.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(values)
    return layer


def test_brush_a_matrix_unit_that_is_missing_on_a_3060():
    q8 = formats.get("q8_0")
    encoded, x = formats.encode(weight(), q8, "w"), activations(256)
    want = x @ torch.from_numpy(weight()).T
    with rung.simulate("RTX 3060") as card:
        with pytest.raises(RuntimeError, match=CMMA) as caught:
            rungs.CMMA.apply(encoded, x.cuda())
        assert known(caught.value) is StepClass.UNSUPPORTED

        ladder = rungs.ladder("cmma.tile", "CMMA", needs=(rungs.CMMA_NEED,))
        binder = Binder(card, Journal(), dtype="f16", ladders={"linear": ladder})
        linear = binder.linear(encoded)
        assert [r.name for r in linear.rungs] == ["torch.decode"] * 2  # what nobody has proved is not tried
        assert decibels(linear(x.cuda()).cpu(), want) > q8.floor_db

        # a table that promises the unit: the self-check finds out, and the report says so
        promised = card.with_capabilities([Capability(rungs.CMMA_NEED, Level.NATIVE, Proof.TABLE, "a table")])
        journal = Journal()
        linear = Binder(promised, journal, dtype="f16", ladders={"linear": ladder}).linear(encoded)
        assert written(journal)[0] == ("cmma.tile", StepClass.BROKEN, "torch.decode")
        assert "Cmma on inputs" in journal.report(FrozenDict(), FrozenDict()).steps[0].reason
        assert decibels(linear(x.cuda()).cpu(), want) > q8.floor_db


def test_brush_splats_that_need_the_unit_are_drawn_without_it_on_a_3060():
    camera, scene = Camera(20, 20, 30.0, 30.0, 10.0, 10.0, 0), splats(20, 0)
    want = LADDERS["rasterize"].rung("ref").load().apply(scene, torch.eye(4), camera)
    for needs, tried in (((rungs.CMMA_NEED,), False), ((), True)):  # said by the rung, or found out
        unit = Rung("rasterize", "cmma.tile", "tests.run.bad_rungs:NO_UNIT", needs=needs)
        ladder, journal = Ladder("rasterize", (unit, *LADDERS["rasterize"].rungs[-2:])), Journal()
        with rung.simulate("RTX 3060") as card:
            rasterizer = Binder(card, journal, ladders={"rasterize": ladder}).rasterizer(degree=0, antialiased=False)
            drawn = rasterizer(Splats(*(each.cuda() for each in scene)), torch.eye(4).cuda(), camera)
            assert decibels(drawn.color.cpu(), want.color) > 60
        assert rasterizer.rung.name == "torch.tile"
        assert written(journal) == [("cmma.tile", StepClass.BROKEN, "torch.tile")] * tried
        if not tried:
            assert "16x16x16" in unit.verdict(Case("rasterize", "f32", "f32", (20, 20, 20)), card).reason


def test_bitsandbytes_a_merge_into_int8_on_a_v100():
    import bitsandbytes

    int8 = formats.get("llm_int8")
    base = weight(64, 64)
    generator = np.random.default_rng(5)
    delta = (generator.standard_normal((64, 4)) @ generator.standard_normal((4, 64)) / 100).astype(np.float32)
    encoded = formats.encode(base, int8, "w")
    with rung.simulate("V100", defects=[rung.Defect("_int_mm", "int8", NotImplementedError, IGEMMLT)]) as card:
        # how the weight was brought back: the identity multiplied by it, in int8
        identity = torch.eye(64, device="cuda")
        with pytest.raises(NotImplementedError, match=re.escape(IGEMMLT)) as caught:
            rungs.IGEMMLT.apply(rungs.IGEMMLT.prepare(encoded, dtype="f32", threads=1), identity)
        assert known(caught.value) is StepClass.UNSUPPORTED

        journal, ladder = Journal(), rungs.ladder("bnb.igemmlt", "IGEMMLT")
        linear = Binder(card, journal, dtype="f32", ladders={"linear": ladder}).linear(encoded)
        assert written(journal) == [("bnb.igemmlt", StepClass.BROKEN, "torch.decode")]
        brought_back = linear(identity).T.cpu()
    assert torch.equal(brought_back, torch.from_numpy(formats.decode(encoded)))  # the codec needs no product for it

    stored = formats.encode((brought_back + torch.from_numpy(delta)).numpy(), int8, "w")
    merged = decoded(encoded.parts["data"], encoded.parts["scale"]) + delta  # in float64
    codes, scale, _ = bitsandbytes.functional.int8_vectorwise_quant(torch.from_numpy(merged).float())
    assert np.array_equal(stored.parts["data"], codes.numpy())
    assert decibels(formats.decode(stored), merged) > int8.floor_db
    assert decibels(formats.decode(stored), merged) == pytest.approx(decibels(decoded(codes, scale), merged), abs=1e-4)
    assert decibels(formats.decode(stored), base + delta) > floor_after(2, int8.floor_db)  # encoded twice


def decoded(codes, scale):
    """Decode bitsandbytes' int8 to float64."""
    return np.asarray(codes, np.float64) * (np.asarray(scale, np.float64) / 127)[:, None]


def test_llamafile_code_whose_body_was_compiled_away():
    q8 = formats.get("q8_0")
    encoded, x = formats.encode(weight(), q8, "w"), activations(256)
    want = x @ torch.from_numpy(weight()).T
    words = r"vec_dot_q8_0_q8_1_impl has no device code compatible with CUDA arch 600.*500,600,700,750,800,900"
    with rung.simulate("Quadro P2200") as card:
        with pytest.raises(RuntimeError, match=words) as caught:
            rungs.MMQ.apply(encoded, x.cuda())
        assert known(caught.value) is StepClass.UNSUPPORTED

        journal = Journal()
        linear = Binder(card, journal, dtype="f32", ladders={"linear": rungs.ladder("ggml.mmq", "MMQ")}).linear(encoded)
        assert written(journal) == [("ggml.mmq", StepClass.BROKEN, "torch.decode")]
        assert decibels(linear(x.cuda()).cpu(), want) > q8.floor_db

        # a rung that names its need is not even tried: the build has no code with dp4a for this card
        knowing = rungs.ladder("ggml.mmq", "MMQ", needs=("code.dot8",))
        binder = Binder(card, Journal(), dtype="f32", ladders={"linear": knowing})
        assert binder.linear(encoded).rungs[0].name == "torch.decode"
        refusal = knowing.climb(card, binder.linear(encoded).cases[0]).refusals[0]
        assert "compiled without dp4a" in refusal.reason
    with rung.simulate("RTX 3060") as card:
        journal = Journal()
        linear = Binder(card, journal, dtype="f32", ladders={"linear": rungs.ladder("ggml.mmq", "MMQ")}).linear(encoded)
        assert linear.rungs[0].name == "ggml.mmq"
        assert written(journal) == []


def test_gemma_bf16_is_refused_on_a_p2200():
    model, ids = tiny_model("gemma"), torch.tensor([[2, 7, 11]])
    with rung.simulate("Quadro P2200", software="torch 1.10+cu102"):
        naive = copy.deepcopy(model).to(torch.bfloat16).cuda()
        with pytest.raises(RuntimeError, match=BF16) as caught:
            naive(ids.cuda())
        assert known(caught.value) is StepClass.UNSUPPORTED


def test_gemma_then_is_too_big_in_f16():
    import transformers

    config = transformers.GemmaConfig(
        vocab_size=256_000, hidden_size=2048, intermediate_size=16_384, num_hidden_layers=18, num_attention_heads=8,
        num_key_value_heads=1, head_dim=256,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.GemmaForCausalLM(config).half()
    with rung.simulate("Quadro P2200", software="torch 1.10+cu102"):
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory") as caught:
            model.to_empty(device="cuda")
        assert known(caught.value) is StepClass.OUT_OF_MEMORY


def test_gemma_then_is_planned_quantized():
    (card,) = describe(["Quadro P2200"], software="torch 1.10+cu102")
    plan = rung.plan(gemma_2b("bf16"), devices=[card], context=4096)
    refused = {c.format: c.verdict.reason for c in plan.candidates if not c.verdict}
    assert {"bf16", "f16"} <= set(refused)
    assert "does not multiply bf16" in refused["bf16"]
    assert refused["f16"].startswith("needs")
    assert formats.get(plan.format).bits < 16
    assert [(s.rung, s.step, s.to) for s in steps_down(plan, None)] == [
        ("bf16", StepClass.UNSUPPORTED, "q8_0"), ("f16", StepClass.OUT_OF_MEMORY, "q8_0")
    ]  # fmt: skip
    assert plan.placements[0].memory.total < card.budget


def test_gemma_then_runs_quantized(tmp_path, heard):
    model = tiny_checkpoint(tmp_path, "gemma", "bfloat16", hidden_size=256, intermediate_size=512, head_dim=64)
    gguf_vocabulary(tmp_path)
    ids, q8 = list(range(64)), formats.get("q8_0")
    with rung.simulate("Quadro P2200", software="torch 1.10+cu102"):
        needs = {c.format: c.placements[0].memory.most for c in rung.plan(tmp_path, device="cuda:0").candidates}
        loaded = rung.load(tmp_path, device="cuda:0", memory=(needs["f16"] + needs["q8_0"]) // 2)
        got = loaded.logits(ids)
    report = loaded.report
    assert steps(report) == [
        ("bf16", StepClass.UNSUPPORTED, "q8_0"), ("f16", StepClass.OUT_OF_MEMORY, "q8_0"),
        *2 * [("cuda.stored", StepClass.UNAVAILABLE, "torch.decode")],  # of products, and of the embedding
    ]  # fmt: skip
    assert "no bf16 GEMM" in report.steps[0].reason
    assert "NVRTC 10 is older" in report.steps[2].reason
    assert report.rungs["linear q8_0"] == "torch.decode"
    products = at_the_floor(heard, model, q8.floor_db)
    with torch.inference_mode():
        want, rounded = model(torch.tensor([ids])).logits[0], as_gguf(model)(torch.tensor([ids])).logits[0]
    # one error more than products: rows of the embedding are looked up in the same format
    assert decibels(got, want) > floor_after(products + 1, q8.floor_db)
    # of that nothing is rung's: it computes what the file says, keys and values of two layers rounded to f16
    assert decibels(got, rounded) > floor_after(4, formats.get(loaded.plan.cache_dtype).floor_db)


def as_gguf(model):
    """The model with every matrix encoded in Q8_0 and decoded by the gguf package."""
    result = copy.deepcopy(model)
    kind = gguf.GGMLQuantizationType.Q8_0
    for parameter in result.parameters():
        if parameter.dim() == 2:
            stored = gguf.quants.quantize(parameter.detach().numpy(), kind)
            parameter.data = torch.from_numpy(gguf.quants.dequantize(stored, kind))
    return result
