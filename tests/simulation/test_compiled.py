"""Kernels in CUDA C on simulated cards, which run them on the processor: what is bound, answers, graphs."""

import contextlib
import copy
import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rung
from rung import formats
from rung.core.types import Case
from rung.core.value import FrozenDict
from rung.hub.bitsandbytes import int8
from rung.kernels.cuda import driver, fibers
from rung.kernels.gpu import cuda_products, stored
from rung.models.adapters.adapter import LowRank
from rung.ops import LADDERS
from rung.ops.decode_step import self_check
from rung.ops.decode_step.cuda import step
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.decode_step.parts import SequenceRows
from rung.ops.token_choice import Row
from rung.planning import memory
from rung.planning.memory import program_bytes
from rung.run.torch_private import TorchDispatchMode
from rung.simulation.cards import describe
from rung.simulation.dispatch.dispatch_hook import is_view
from tests.fixtures import references
from tests.support.weights import weight
from tests.tiny import gguf_vocabulary, tiny_checkpoint
from tests.training.lora import KINDS, adapted

pytestmark = pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
slow = partial(pytest.param, marks=pytest.mark.slow)
#: Of the compute capabilities 6.1, 7.0, 7.5 and 8.6, and one of AMD's.
CARDS = ("p2200", *(slow(name) for name in ("v100", "t4", "3060")), "7900 xtx")
OPTIONS = {"max_tokens": 6, "temperature": 0, "raw": True}


@contextlib.contextmanager
def launches():
    """The names of kernels that are launched in the block."""
    names, launch = [], driver.launch
    driver.launch = lambda *arguments: names.append(arguments[2]) or launch(*arguments)
    try:
        yield names
    finally:
        driver.launch = launch


def answers(model):
    return ["".join(model.generate(prompt, **OPTIONS)) for prompt in ("The model", "Memory is " * 9)]


@pytest.fixture(scope="module")
def right():
    """The fixture with formats of both kinds of codes, and its answers on the processor."""
    path = str(references.fixture("llama-q4_k_m").path)
    return path, answers(rung.load(path, device="cpu"))


@pytest.mark.parametrize("name", CARDS)
def test_a_model_takes_the_kernels_and_gives_the_tokens_of_the_processor(name, right):
    """A token, and prompts of more rows than a kernel takes."""
    path, tokens = right
    with rung.simulate(name) as card:
        model = rung.load(path, device=card.id)
        linears = {rung for op, rung in model.report.rungs.items() if op.startswith("linear")}
        assert linears == {"cuda.rows"}
        assert model.report.rungs["decode_step f16"] == "cuda.step"
        assert not model.report.steps
        assert answers(model) == tokens


def test_what_a_model_launches_goes_to_its_card(right, monkeypatch):
    """Rows of its q6_k table for a prompt, too: the processor has no part in kernels of a card."""
    path, tokens = right
    places, launch = set(), cuda_products.launch
    with rung.simulate("p2200") as card:
        model = rung.load(path, device=card.id)
        assert model.report.rungs["embedding q6_k"] == "cuda.stored"
        monkeypatch.setattr(
            cuda_products, "launch", lambda *arguments: places.add(arguments[0].type) or launch(*arguments)
        )
        assert answers(model) == tokens
        assert not model.report.steps
    assert places == {"cuda"}


@pytest.mark.parametrize("format", ["nf4", "int8", "q4_0", "q5_k"])
def test_layers_hold_no_second_copy_of_a_weight(format):
    """Kernels read a weight as it is stored."""
    plain = torch.nn.Linear(256, 40)
    with rung.simulate("p2200"), torch.no_grad():
        layer = rung.quantize(torch.nn.Sequential(plain), format).to("cuda")[0]
        x = torch.randn(3, 256, device="cuda")
        got, right = layer(x).cpu(), (x @ layer.weight.float().T + layer.bias).cpu()
        assert layer.stored.linear(x).rungs[0].name == "cuda.stored"
    assert np.allclose(got, right, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 16, 17])
def test_int8_of_bitsandbytes_has_the_bits_of_the_processor(rows, dtype):
    """Rows with outliers, quantized and multiplied by kernels, more than 16 of them multiplied by torch."""
    random = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 272, generator=random) * 2.5, torch.randn(19, 272, generator=random)
    x, bias = x.to(dtype), torch.randn(19, generator=random).to(dtype)
    quantized, scales, _ = int8.int8_vectorwise_quant(weight)
    right, peaks, columns = int8.int8_vectorwise_quant(x, 6.0)
    expected, _ = int8.int8_mixed_scaled_mm(x, right, quantized, peaks, scales, columns, bias)
    with rung.simulate("v100"), launches() as launched:
        codes, found, apart = int8.int8_vectorwise_quant(x.cuda(), 6.0)
        got, _ = int8.int8_mixed_scaled_mm(x.cuda(), codes, quantized.cuda(), found, scales.cuda(), apart, bias.cuda())
        sums = int8.int8_linear_matmul(codes, quantized.cuda()).cpu()
        assert [each.cpu().tolist() for each in (codes, found, apart)] == [
            right.tolist(),
            peaks.tolist(),
            columns.tolist(),
        ]
        assert torch.equal(got.cpu(), expected)
    assert torch.equal(sums, right.int() @ quantized.int().T)
    order = ["quantize_rows", "multiply_bytes", "sum_bytes"] if rows < 17 else ["quantize_rows"]
    assert launched[-len(order) :] == order


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_threshold_that_a_dtype_rounds_is_the_one_of_torch(dtype):
    """3.3 is 3.296875 in bfloat16, which a number of that size is not below."""
    x = torch.tensor([[1.0, 3.296875, 3.3125, 2.0] * 16, [3.296875, 1.0, 0.5, 3.30078125] * 16], dtype=dtype)
    right = int8.int8_vectorwise_quant(x, 3.3)
    with rung.simulate("v100"), launches() as launched:
        found = int8.int8_vectorwise_quant(x.cuda(), 3.3)
        assert all(torch.equal(mine.cpu(), its) for mine, its in zip(found, right, strict=True))
    assert launched[-1] == "quantize_rows"


def test_what_is_no_codes_or_scales_goes_to_no_kernel():
    """Torch refuses them, or computes with what a kernel would misread: the same as on the processor."""
    codes, weight = torch.ones(2, 32, dtype=torch.int8), torch.ones(16, 32, dtype=torch.int8)
    tall, wide = torch.ones(2), torch.full((16,), 2.0)
    right = int8.int8_scaled_mm(codes, weight, tall, wide.double())
    with rung.simulate("v100"), launches() as launched:
        codes, weight, tall, wide = (each.cuda() for each in (codes, weight, tall, wide))
        int8.int8_scaled_mm(codes, weight, tall, wide)
        assert launched[-1] == "multiply_bytes"
        launched.clear()
        for pair in ((codes, weight[:, :16]), (codes[:, :16], weight)):
            with pytest.raises(ValueError, match="columns"):
                int8.int8_linear_matmul(*pair)
        assert (int8.int8_linear_matmul(codes, weight.float()) == 32).all()
        for scales in ((torch.ones(3, device="cuda"), wide), (tall, wide[:3]), (tall, wide.cpu())):
            with pytest.raises(RuntimeError):
                int8.int8_scaled_mm(codes, weight, *scales)
        with pytest.raises(ValueError, match="row_stats"):
            int8.int8_scaled_mm(codes, weight, tall.half(), wide)
        assert torch.equal(int8.int8_scaled_mm(codes, weight, tall, wide.double()).cpu(), right)
    assert "multiply_bytes" not in launched


@pytest.mark.parametrize(("name", "card"), [("multiply_bytes", "p2200"), ("quantized_rows", "1080 ti")])
def test_int8_of_bitsandbytes_is_torchs_where_a_kernel_is_wrong(name, card, monkeypatch):
    plain, x = getattr(cuda_products, name), torch.randn(2, 64)
    wrong = {
        "multiply_bytes": lambda *arguments: plain(*arguments) * 2,
        "quantized_rows": lambda *arguments: (plain(*arguments)[0] // 2, *plain(*arguments)[1:]),
    }
    monkeypatch.setattr(cuda_products, name, wrong[name])
    with rung.simulate(card):
        with pytest.warns(RuntimeWarning, match="cuda.bytes is not used"):
            codes = int8.int8_vectorwise_quant(x.cuda())[0]
        assert torch.equal(codes.cpu(), int8.int8_vectorwise_quant(x)[0])


@pytest.mark.parametrize("format", ["q6_k", "int8"])
def test_a_table_of_a_gguf_type_is_decoded_by_a_kernel(format, monkeypatch):
    table = torch.nn.Embedding(19, 256)
    ids = torch.tensor([[18, 3], [3, 0]])
    right = rung.quantize(torch.nn.Sequential(table), "q8_0", embeddings=format)[0]
    launched, launch = [], cuda_products.launch
    monkeypatch.setattr(cuda_products, "launch", lambda *arguments: launched.append(arguments[2]) or launch(*arguments))
    with rung.simulate("p2200"), torch.no_grad():
        layer = copy.deepcopy(right).to("cuda")
        assert torch.equal(layer(ids.cuda()).cpu(), right(ids))
    assert set(launched) == {"decode"}


@pytest.mark.parametrize("format", ["q4_k", "int8"])
def test_layers_step_down_where_the_self_check_finds_a_wrong_product(format, monkeypatch):
    """A kernel that is a tenth off is left for decoded weights, and said."""
    plain, right = torch.nn.Linear(256, 40), cuda_products.multiply
    monkeypatch.setattr(cuda_products, "multiply", lambda weight, x: right(weight, x) * 1.1)
    with rung.simulate("3060"), torch.no_grad():
        layer = rung.quantize(torch.nn.Sequential(plain), format).to("cuda")[0]
        x = torch.randn(3, 256, device="cuda")
        with pytest.warns(RuntimeWarning, match="is not used"):
            layer(x)
        assert torch.allclose(layer(x).cpu(), (x @ layer.weight.float().T + layer.bias).cpu(), atol=1e-4)
        assert layer.stored.linear(x).rungs[0].name == "torch.decode"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_training_decodes_a_slab_at_a_time(dtype, monkeypatch):
    """Gradients of activations are those of the decoded weight, which is never whole in the card's memory."""
    monkeypatch.setattr(stored, "SLAB", 1 << 16)
    plain = torch.nn.Linear(1024, 512, bias=False)
    with rung.simulate("3060"), launches() as launched:
        layer = rung.quantize(torch.nn.Sequential(plain), "nf4").to("cuda")[0]
        whole = layer.weight.detach().float().cpu()
        x = torch.randn(20, 1024, dtype=dtype, device="cuda", requires_grad=True)
        layer(x).float().square().sum().backward()  # the first call proves the rung
        x.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer(x).float().square().sum().backward()
        assert torch.cuda.max_memory_allocated() - before < 1024 * 512 * dtype.itemsize
        got, x = x.grad.cpu(), x.detach().cpu()
    right = (2 * (x.float() @ whole.T) @ whole).numpy()
    assert np.allclose(got.float(), right, atol=(2e-3 if dtype is torch.float16 else 1e-5) * np.abs(right).max())
    assert "decode" in launched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_operators_of_bitsandbytes(dtype, monkeypatch):
    """The product by the codebook and decoded weights, on the card as on the processor."""
    from rung.formats.families.codebook4 import CODEBOOKS
    from rung.hub.bitsandbytes.kernels import KERNELS

    monkeypatch.setattr(stored, "SLAB", 1 << 16)
    codes, absmax = KERNELS["quantize_4bit"](torch.randn(96, 256), 64, "nf4", torch.uint8)
    x, code = torch.randn(2, 3, 256).to(dtype), torch.from_numpy(CODEBOOKS["nf4"])
    arguments = (codes, [96, 256], absmax, code, 64)
    right = KERNELS["gemv_4bit"](x, *arguments), KERNELS["dequantize_4bit"](codes, absmax, 64, "nf4", [96, 256], dtype)
    with rung.simulate("3060"), launches() as launched:
        there = [each.to("cuda") if isinstance(each, torch.Tensor) else each for each in (x, *arguments)]
        product = KERNELS["gemv_4bit"](*there).cpu()
        weight_there = KERNELS["dequantize_4bit"](there[1], there[3], 64, "nf4", [96, 256], dtype).cpu()
    assert torch.equal(weight_there, right[1])
    assert np.allclose(product.float(), right[0].float(), atol=1e-5 if dtype is torch.float32 else 0.05)
    assert "decode" in launched


def test_a_graph_launches_them_again():
    encoded = weight(formats.get("q4_0"), 20, 128)
    dense = torch.from_numpy(formats.decode(encoded))
    with rung.simulate("3060") as card:
        packed = cuda_products.packed(encoded, torch.device(card.id))
        inputs, graph = torch.zeros(2, 128, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = cuda_products.multiply(packed, inputs) + 1
        inputs.copy_(torch.randn(2, 128))
        graph.replay()
        got, x = y.cpu() - 1, inputs.cpu()
    assert np.allclose(got, x @ dense.T, atol=0.05 * float((x @ dense.T).abs().max()))


class Operations(TorchDispatchMode):
    """Count the operations of torch that do more than look at memory."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not is_view(func._schema)
        return func(*args, **(kwargs or {}))


def test_a_token_is_a_graph_of_five_kernels_a_layer(monkeypatch):
    """The first token launches them, the second one captures them with the same arguments: none of them moves. Later
    ones launch the graph, and at most six operations of torch."""
    options = {"head_dim": 64, "linears": ("cuda.rows",), "devices": 1, "ordered": False}
    case = Case("decode_step", "f16", "f32", (2, 64, 96, 83), FrozenDict(options))
    replayed, passed, logits = [], [], {}
    with rung.simulate("3060") as card:
        graph, launch = torch.cuda.CUDAGraph, driver.launch
        replay = graph.replay

        def one(*arguments):
            passed[-1].append((arguments[2], arguments[3], *map(bytes, arguments[4])))
            return launch(*arguments)

        for name in ("ref", "cuda.step"):
            cache = self_check.TinyCache(64, case.format, card.id)
            implementation = LADDERS["decode_step"].rung(name).load()
            state = implementation.prepare(self_check.weights(case, card.id), cache, threads=1)
            graph.replay, driver.launch = lambda self: replayed.append(self) or replay(self), one
            rows = []
            for at in range(20):
                passed.append([])
                with Operations() as counted:
                    rows.append(implementation.apply(state, [SequenceRows([3 * at], at, cache, 1)]).copy())
            logits[name] = np.concatenate(rows)
            graph.replay, driver.launch = replay, launch
    passed = passed[20:]
    assert [len(each) for each in passed[:2]] == [2 * 5 + 2] * 2
    assert passed[0] == passed[1]
    assert not any(passed[2:])
    assert len(replayed) == 19
    assert len(set(map(id, replayed))) == 1
    assert counted.count <= 6
    assert np.allclose(logits["cuda.step"], logits["ref"], atol=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        *("gemma3_text", "phi3", "qwen2-iq4_nl"),
        *(slow(name) for name in ("gemma2", "gemma2-nf4", "qwen2", "qwen3")),
    ],
)
def test_logits_of_a_graph_are_those_of_the_processor(name, tmp_path):
    """Norms behind products, soft caps and windows; biases; norms of q and k; one weight for gate and up; codes that
    index a table, with weights beside them whose codes are integers (the processor rounds all activations)."""
    name, _, format = name.partition("-")
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64 if format else 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    tiny_checkpoint(tmp_path, name, head_dim=32, **sizes)
    gguf_vocabulary(tmp_path)
    options = {"format": format or "q8_0", "context": 64, "cache_type": "f32"}
    ids = np.random.default_rng(5).integers(0, 320, 20)
    right = references.token_by_token(rung.load(tmp_path, device="cpu", **options), ids)
    with rung.simulate("t4") as card:
        model = rung.load(tmp_path, device=card.id, **options)
        assert model.report.rungs["decode_step f32"] == "cuda.step"
        found = references.token_by_token(model, ids)
    off = np.abs(found - right) / right.std(axis=1, keepdims=True)
    assert off.max() < (0.2 if format else 0.1)
    assert off.mean() < (0.02 if format else 0.005)


@pytest.mark.parametrize(("linears", "head_dim", "dtype"), [("cuda.rows", 64, "f16"), ("cuda.stored", 32, "q8_0")])
def test_rows_of_several_sequences_share_a_graph_and_have_the_bits_of_each_alone(monkeypatch, linears, head_dim, dtype):
    """Three rows where there is room for four, at positions of their own; weights in q8_0, and in nf4 and int8. Norms
    behind products are a part of both layers."""
    options = {"head_dim": head_dim, "linears": (linears,), "devices": 1, "ordered": False}
    case = Case("decode_step", dtype, "f32", (2, 64, 96, 83), FrozenDict(options))
    with rung.simulate("3060") as card:
        pool = self_check.TinyCache(head_dim, dtype, card.id)
        together = [pool, *(self_check.TinyCache(head_dim, dtype, card.id, pool) for _ in range(2))]
        alone = [self_check.TinyCache(head_dim, dtype, card.id, pool) for _ in range(3)]
        step = LADDERS["decode_step"].rung("cuda.step").load()
        state, launched, starts = step.prepare(self_check.weights(case, card.id), pool, threads=1), [], [0, 3, 9]
        for each, other, start in zip(together, alone, starts, strict=True):
            for cache in (each, other) if start else ():
                step.apply(state, [SequenceRows(list(range(start)), 0, cache, 0)])
        launch = driver.launch
        monkeypatch.setattr(driver, "launch", lambda *arguments: (launched.append(arguments[2]), launch(*arguments)))
        for at in range(4):
            batch = [SequenceRows([7 * at + n], starts[n] + at, cache, 1) for n, cache in enumerate(together)]
            found = step.apply(state, batch).copy()
            if not at:
                assert len(launched) == 2 * 7 + 2
            single = [SequenceRows([7 * at + n], starts[n] + at, cache, 1) for n, cache in enumerate(alone)]
            right = np.concatenate([step.apply(state, [each]).copy() for each in single])
            assert (found == right).all()
        assert step.apply(state, [SequenceRows([1], 4, together[0], 0)]).shape == (0, 83)


def changes(seed, rank, magnitudes, roles):
    """An adapter of the layers of the self-check's decoder, as large as its weights."""
    generator = np.random.default_rng(seed)
    shapes = {"q": (256, 64), "v": (128, 64), "o": (64, 256), "gate": (96, 64), "up": (96, 64), "down": (64, 96)}
    found = {}
    for role in (f"layers.{layer}.{each}" for layer in range(2) for each in roles):
        rows, columns = shapes[role.rpartition(".")[2]]
        down, up = generator.standard_normal((rank, columns)), generator.standard_normal((rows, rank))
        magnitude = np.abs(generator.standard_normal(rows)).astype(np.float32) + 0.5 if magnitudes else None
        found[role] = [LowRank(np.float32(down / 8), np.float32(up / 2), 0.7, magnitude)]
    return found


def test_rows_with_adapters_are_those_of_torch_and_have_the_bits_of_each_alone():
    """LoRA of some weights, DoRA of others with a higher rank, none, and one of the first again, in one batch: a
    kernel more for each product that one of them changes."""
    options = {"head_dim": 64, "linears": ("cuda.rows",), "devices": 1, "ordered": False}
    case = Case("decode_step", "f32", "f32", (2, 64, 96, 83), FrozenDict(options))
    with rung.simulate("3060") as card, launches() as launched:
        weights = self_check.weights(case, card.id)
        first = BoundAdapter(weights, changes(1, 5, False, ("q", "v")), 1)
        other = BoundAdapter(weights, changes(2, 130, True, ("v", "o", "gate", "up", "down")), 1)
        adapters, found = [first, other, None, first], {}
        for key in ("ref", "alone", "together"):
            pool = self_check.TinyCache(64, "f32", card.id)
            caches = [pool, *(self_check.TinyCache(64, "f32", card.id, pool) for _ in adapters[1:])]
            step = LADDERS["decode_step"].rung("ref" if key == "ref" else "cuda.step").load()
            state, found[key] = step.prepare(weights, pool, threads=1), []
            for at in range(3):
                rows = [SequenceRows([7 * at + n], at, each, 1, adapters[n]) for n, each in enumerate(caches)]
                launched.clear()
                for batch in [[row] for row in rows] if key == "alone" else [rows]:
                    found[key].append(step.apply(state, batch).copy())
                if key == "together" and not at:
                    assert len(launched) == 2 * (7 + 4) + 2
    alone, together, right = (np.concatenate(found[key]) for key in ("alone", "together", "ref"))
    assert (alone == together).all()
    assert np.abs(together - right).max() < 0.1 * right.std()
    assert np.abs(together - right).mean() < 0.005 * right.std()
    assert np.abs(right[0] - right[2]).max() > right.std()


def test_rows_of_padding_have_no_adapter_of_an_earlier_token():
    """It may be gone by then: a program of four reads no address that the three rows of a token do not have."""
    options = {"head_dim": 64, "linears": ("cuda.rows",), "devices": 1, "ordered": False}
    case = Case("decode_step", "f32", "f32", (2, 64, 96, 83), FrozenDict(options))
    with rung.simulate("3060") as card:
        weights, pool = self_check.weights(case, card.id), self_check.TinyCache(64, "f32", card.id)
        caches = [pool, *(self_check.TinyCache(64, "f32", card.id, pool) for _ in range(3))]
        kept, other = (BoundAdapter(weights, changes(seed, 5, False, ("q", "v")), 1) for seed in (1, 2))
        state = LADDERS["decode_step"].rung("cuda.step").load().prepare(weights, pool, threads=1)
        for adapters in ([kept, kept, kept, other], [kept, None, kept]):
            rows = [SequenceRows([3], 0, cache, 1, each) for cache, each in zip(caches, adapters, strict=False)]
            program, addresses = state.program(rows)
            program.tokens(rows, addresses)
        read = program.input.cpu().reshape(program.count, -1)[:, program.turns[-1] : program.info]
        assert read.contiguous().view(torch.int64).flatten().tolist() == [*addresses, 0]
    assert addresses[0] == addresses[2] > addresses[1] == 0


@pytest.mark.parametrize("magnitudes", [False, True], ids=["lora", "dora"])
def test_tokens_that_a_card_chooses_with_an_adapter_are_those_of_torch(magnitudes):
    """Six one after the other, each the likeliest by the network in torch with the same adapter; then some without."""
    options = {"head_dim": 64, "linears": ("cuda.rows",), "devices": 1, "ordered": False}
    case = Case("decode_step", "f32", "f32", (2, 64, 96, 83), FrozenDict(options))
    greedy, chosen = [Row(temperature=0)] * 6, []
    with rung.simulate("3060") as card:
        weights = self_check.weights(case, card.id)
        bound = BoundAdapter(weights, changes(2, 9, magnitudes, ("q", "v", "o", "gate", "up", "down")), 1)
        right, own = (LADDERS["decode_step"].rung(name).load() for name in ("ref", "cuda.step"))
        pool, other = (self_check.TinyCache(64, "f32", card.id) for _ in range(2))
        network, state = right.prepare(weights, other, threads=1), own.prepare(weights, pool, threads=1)
        for adapter in (bound, None):
            tokens = [5, *own.choose(state, SequenceRows([5], 0, pool, 1, adapter), greedy)]
            rows = [SequenceRows([each], at, other, 1, adapter) for at, each in enumerate(tokens[:-1])]
            logits = np.concatenate([right.apply(network, [row]).copy() for row in rows])
            assert tokens[1:] == logits.argmax(axis=1).tolist()
            chosen.append(tokens)
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize(
    ("name", "format", "options"),
    [
        slow("gemma3_text", "q8_0", {"temperature": 0}),
        slow("gemma3_text", "q8_0", {"temperature": 1.0, "seed": 4}),
        ("gemma3_text", "q8_0", {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "seed": 5}),
        slow("llama", "q8_0", {"temperature": 0}),
        ("llama", "nf4", {"temperature": 0}),
    ],
    ids=str,
)
def test_tokens_that_a_card_chooses_are_those_of_its_logits(name, format, options, tmp_path, monkeypatch):
    """Tokens follow each other without the processor, with a tied head and with an embedding of its own."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
    tiny_checkpoint(tmp_path, name, head_dim=32, **sizes)
    gguf_vocabulary(tmp_path)
    keywords = {"max_tokens": 40, "raw": True, **options}
    with rung.simulate("t4") as card, launches() as launched:
        model = rung.load(tmp_path, device=card.id, format="q8_0", context=128, cache_type="f32")
        assert model.report.rungs["decode_step f32"] == "cuda.step"
        launched.clear()  # of self-checks
        chosen = "".join(model.generate("The model", **keywords))
        assert "embed" in launched
        assert ("drawn" in launched) == (options["temperature"] > 0)
        assert ("narrow" in launched) == ("top_k" in options)
        monkeypatch.setattr(step.Step, "look_ahead", lambda self, state: 0)
        model = rung.load(tmp_path, device=card.id, format="q8_0", context=128, cache_type="f32")
        assert "".join(model.generate("The model", **keywords)) == chosen


@pytest.mark.parametrize("format", ["f32", "f16", "bf16", "nf4", "int8", "q4_0"])
def test_rows_of_an_embedding_of_its_own_are_read_as_it_is_stored(format):
    """Six tokens that the card chooses, which reads their rows, beside logits of rows that the processor looks up."""
    options = {"head_dim": 64, "linears": ("cuda.rows",), "devices": 1, "ordered": False}
    case = Case("decode_step", "f32", "f32", (2, 64, 96, 83), FrozenDict(options))
    encoded = weight(formats.get(format), self_check.VOCABULARY, self_check.HIDDEN)
    look_up = SimpleNamespace(
        state=stored.prepare(encoded, "f32", 1), rows=lambda ids: formats.decode(encoded)[list(ids)]
    )
    with rung.simulate("3060") as card, launches() as launched:
        pool, other = (self_check.TinyCache(64, "f32", card.id) for _ in range(2))
        weights = dataclasses.replace(self_check.weights(case, card.id), look_up=look_up)
        one = LADDERS["decode_step"].rung("cuda.step").load()
        state = one.prepare(weights, pool, threads=1)
        tokens = [5, *one.choose(state, SequenceRows([5], 0, pool), [Row(temperature=0)] * 6)]
        assert "embed" in launched
        rows = [SequenceRows([each], at, other, 1) for at, each in enumerate(tokens[:-1])]
        logits = np.concatenate([one.apply(state, [row]).copy() for row in rows])
    assert tokens[1:] == logits.argmax(axis=1).tolist()


def test_a_choice_is_a_graph_and_two_copies():
    options = {"head_dim": 64, "linears": ("cuda.rows",), "devices": 1, "ordered": False}
    case = Case("decode_step", "f16", "f32", (2, 64, 96, 83), FrozenDict(options))
    settings = [Row(temperature=1.0, top_k=9, random=each << 60) for each in range(16)]
    with rung.simulate("3060") as card, launches() as launched:
        pool = self_check.TinyCache(64, case.format, card.id)
        one = LADDERS["decode_step"].rung("cuda.step").load()
        state = one.prepare(self_check.weights(case, card.id), pool, threads=1)
        assert one.look_ahead(state) == 16
        one.choose(state, SequenceRows([5], 0, pool), settings[:2])
        assert launched[:1] == ["embed"]
        assert launched[2 * 5 + 3 :][:6] == ["likeliest", "narrow", "narrow", "narrow", "narrow", "drawn"]
        launched.clear()
        with Operations() as counted:
            tokens = one.choose(state, SequenceRows([5], 2, pool), settings)
        assert not launched
        assert counted.count <= 6
        assert len(tokens) == 16


@pytest.mark.parametrize(("name", "format"), [("qwen3", "q8_0"), slow("gemma2", "q8_0"), slow("qwen3", "nf4")])
def test_the_plan_counts_the_buffers_of_programs(name, format, tmp_path, monkeypatch):
    """Within 3 % of what the allocator of a card gave, of one row and of eight, with adapters and without; nf4 takes
    activations as floats."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2}
    tiny_checkpoint(tmp_path, name, head_dim=64, **sizes)
    gguf_vocabulary(tmp_path)
    programs, program = [], step.Program

    def measured(weights, pool, count=1, ranks=None):
        before = torch.cuda.memory_allocated()
        found = program(weights, pool, count, ranks)
        programs.append((weights, pool, torch.cuda.memory_allocated() - before))
        return found

    monkeypatch.setattr(step, "Program", measured)
    planned: list[tuple] = []
    monkeypatch.setattr(
        memory, "program_bytes", lambda *arguments: planned.append(arguments) or program_bytes(*arguments)
    )
    with rung.simulate("3060") as card:
        model = rung.load(tmp_path, device=card.id, format=format, context=256)
        taken = planned[-1][3]
        "".join(model.generate("The", **OPTIONS | {"max_tokens": 2}))
        weights, pool, _ = programs[-1]  # which brought weights there; those before are of self-checks
        cases = [(count, rank) for rank in (0, 200) for count in (1, 8)]
        kept = [measured(weights, pool, count, {"layers.0.q": rank} if rank else {}) for count, rank in cases]
    for (count, rank), (_, _, found) in zip(cases, programs[-len(cases) :], strict=True):
        assert program_bytes(weights.shape, pool.context, count, taken, rank) == pytest.approx(found, rel=0.03)
    assert [each.count for each in kept] == [1, 8, 1, 8]


@pytest.mark.slow
def test_programs_of_adapters_are_counted_however_these_come(tmp_path):
    """Beside a loaded model within 3 % of what the allocator gives; in the plan of a model that is loaded with one."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2}
    folder, adapter = tmp_path / "base", tmp_path / "adapter"
    plain = tiny_checkpoint(folder, "qwen3", head_dim=64, **sizes)
    gguf_vocabulary(folder)
    adapted(plain, **KINDS["lora"]).save_pretrained(adapter)
    with rung.simulate("3060") as card:
        load = partial(rung.load, folder, device=card.id, format="q8_0", context=256)
        model = load()
        "".join(model.generate("The", **OPTIONS))
        before, predicted = torch.cuda.memory_allocated(), model.report.predicted["memory_bytes"]
        model.load_adapter(adapter, "a")
        "".join(model.generate("The", adapter="a", **OPTIONS))
        taken = torch.cuda.memory_allocated() - before
        more = model.report.predicted["memory_bytes"] - predicted
        assert more == pytest.approx(taken, rel=0.03)
        planned = load(adapters=[str(adapter)])
        assert planned.report.predicted["memory_bytes"] - predicted == pytest.approx(more, rel=0.03)


@pytest.mark.slow
def test_a_cache_in_q8_0_is_read_and_written_by_a_graph_and_by_torch(tmp_path):
    """The processor rounds queries, too. A prompt is torch's, each token behind it a graph's."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
    tiny_checkpoint(tmp_path, "qwen3", head_dim=64, **sizes)
    gguf_vocabulary(tmp_path)
    options = {"format": "q8_0", "context": 64}
    ids = np.random.default_rng(5).integers(0, 320, 40)
    right = np.asarray(rung.load(tmp_path, device="cpu", cache_type="f32", **options).logits(ids.tolist()))
    with rung.simulate("t4") as card:
        model, half = (rung.load(tmp_path, device=card.id, cache_type=each, **options) for each in ("q8_0", "f16"))
        assert model.report.rungs["decode_step q8_0"] == "cuda.step"
        use = [each.plan.placements[0].memory.kv_cache for each in (model, half)]
        assert use[0] == use[1] * 17 // 32
        for found in (references.token_by_token(model, ids), np.asarray(model.logits(ids.tolist()))):
            off = np.abs(found - right) / right.std(axis=1, keepdims=True)
            assert 0 < off.max() < 0.2
            assert off.mean() < 0.02


def test_without_a_compiler_a_card_has_none(monkeypatch):
    monkeypatch.setattr(fibers, "compiler", lambda: "")
    (card,) = describe(["p2200"])
    assert "nvrtc" not in card.software
