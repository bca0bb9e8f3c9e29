"""``rung.quantize``: what it replaces, what it leaves, and what it refuses without having changed anything."""

import copy
import re

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import rung
from rung import formats
from rung.core.errors import CannotEncode, UnknownFormat, UsageError
from rung.core.text import matches
from rung.nn import QuantEmbedding, QuantExperts, QuantLinear
from tests.tiny import tiny_model


def small(**layers):
    torch.manual_seed(0)
    return nn.ModuleDict({"up": nn.Linear(64, 128), "down": nn.Linear(128, 64, bias=False), **layers})


def kinds(module):
    return {name: type(layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Embedding)}


@pytest.mark.parametrize("name", ["nf4", "nf4:128:nested", "fp4", "int8", "q4_0", "q8_0", "bf16"])
def test_weights_are_those_of_the_format(name):
    module = small()
    want = {key: formats.encode(module[key].weight.detach().numpy(), formats.get(name)) for key in module}
    bias = module["up"].bias
    assert rung.quantize(module, name) is module
    for key, encoded in want.items():
        assert isinstance(module[key], QuantLinear)
        stored = module[key].stored.encoded()
        assert stored.format == encoded.format
        assert all(np.array_equal(stored.parts[part], encoded.parts[part]) for part in encoded.parts)
    assert module["up"].bias is bias
    assert formats.get("nf4").name == "nf4:64"  # nf4 alone: blocks of 64, f32 scales, not nested


def test_a_layer_alone_gives_its_replacement():
    plain = nn.Linear(64, 8).half().eval()
    layer = rung.quantize(plain, "q8_0")
    assert isinstance(layer, QuantLinear)
    assert layer.weight.dtype == torch.float16
    assert not layer.training
    assert type(plain) is nn.Linear
    assert isinstance(rung.quantize(nn.Embedding(5, 64), "q8_0"), QuantEmbedding)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_head_stay_unless_they_are_named(tied):
    model = tiny_model("llama", tie_word_embeddings=tied)
    plain = copy.deepcopy(model)
    rung.quantize(model, "q8_0")
    found = kinds(model)
    assert found.pop("model.embed_tokens") is nn.Embedding
    assert found.pop("lm_head") is nn.Linear
    assert set(found.values()) == {QuantLinear}
    rung.quantize(plain, "nf4", embeddings="q8_0")
    assert isinstance(plain.lm_head, QuantLinear)
    assert isinstance(plain.model.embed_tokens, QuantEmbedding)
    assert (plain.lm_head.stored is plain.model.embed_tokens.stored) is tied
    assert plain.lm_head.stored.format.name == "q8_0"
    assert plain.model.layers[0].mlp.up_proj.stored.format.name == "nf4:64"


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen2", "phi3"])
def test_a_model_stays_near_itself(model_type):
    """Logits with 8-bit weights, embeddings (Gemma scales them) and head included."""
    model = tiny_model(model_type)
    ids = torch.tensor([[1, 17, 300, 4, 25]])
    with torch.no_grad():
        want = model(ids).logits
        got = rung.quantize(model, "q8_0", embeddings="q8_0")(ids).logits
    assert formats.sqnr(want.numpy(), got.numpy()) > 25


def test_skip():
    module = nn.ModuleDict({"a": small(), "b": small(head=nn.Linear(64, 64))})
    rung.quantize(module, "nf4", skip=["a.up", "b.h*", "down"])
    assert [name for name, kind in kinds(module).items() if kind is QuantLinear] == ["b.up"]
    for pattern, yes, no in (
        ("layers.1", "model.layers.1.up", "model.layers.11.up"),
        ("*_proj", "layers.0.q_proj", "layers.0.q_proj_norm"),
        ("up", "up", "upper"),
    ):
        assert matches(yes, pattern)
        assert not matches(no, pattern)


def test_the_whole_name_of_a_layer_means_that_one():
    module = nn.ModuleDict({"up": nn.Linear(64, 64), "inner": small()})
    rung.quantize(module, "nf4", skip=["up"])
    assert [name for name, kind in kinds(module).items() if kind is QuantLinear] == ["inner.up", "inner.down"]
    module = rung.quantize(small(), "nf4", skip="up")
    assert [name for name, kind in kinds(module).items() if kind is QuantLinear] == ["down"]
    module = rung.quantize(nn.ModuleDict({"up": nn.Linear(64, 64), "inner": small()}), "nf4", keep={"up": "int8"})
    assert module["up"].stored.format.name == "int8"
    assert module["inner"]["up"].stored.format.name == "nf4:64"


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Linear):
    pass


def test_subclasses_of_linear(logged):
    """Subclasses that compute as torch's own are quantized, the others are named."""
    falcon = transformers.models.falcon.modeling_falcon.FalconLinear(64, 64)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    module = small(own=Doubled(64, 64), named=Named(64, 64), falcon=falcon, normed=normed, lazy=nn.LazyLinear(64))
    x = torch.randn(3, 64)
    want = [module[key](x) for key in ("own", "named", "falcon", "normed")]
    rung.quantize(module, "int8")
    found = {key for key, kind in kinds(module).items() if kind is QuantLinear}
    assert found == {"up", "down", "named", "falcon"}
    got = [module[key](x) for key in ("own", "named", "falcon", "normed")]
    for before, after in zip(want, got, strict=True):
        assert formats.sqnr(before.detach().numpy(), after.detach().numpy()) > 35
    said = "\n".join(record.getMessage() for record in logged)
    assert "Doubled computes in its own way: own" in said
    assert "FalconLinear" not in said


def test_attention_of_torch():
    """``out_proj`` is used by its weight and not by its forward."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 64)
    want = block(x)
    got = rung.quantize(block, "q8_0")(x)
    assert isinstance(block.self_attn.out_proj, QuantLinear)
    assert formats.sqnr(want.detach().numpy(), got.detach().numpy()) > 38
    with torch.no_grad():
        assert formats.sqnr(want.numpy(), block.eval()(x).numpy()) > 35


def test_a_layer_that_is_used_twice_stays_one():
    shared = nn.Linear(64, 64)
    module = nn.ModuleDict({"a": shared, "b": shared})
    rung.quantize(module, "nf4")
    assert module["a"] is module["b"]
    assert isinstance(module["a"], QuantLinear)


def nan(value, layer=None):
    layer = layer or nn.Linear(64, 8)
    with torch.no_grad():
        layer.weight[3, 5] = value
    return layer


@pytest.mark.parametrize(
    ("broken", "arguments", "error", "says"),
    [
        (nan(torch.nan), {}, CannotEncode, r"Row 3 of odd.weight holds NaN"),
        (nan(-torch.inf), {}, CannotEncode, r"Row 3 of odd.weight holds Inf"),
        (nan(1e38), {"format": "q8_0"}, CannotEncode, r"Row 3 of odd.weight needs a scale"),
        (nan(torch.nan), {"format": "bf16"}, CannotEncode, r"Row 3 of odd.weight holds NaN"),
        (nn.Linear(64, 8, device="meta"), {}, UsageError, "odd.weight is on the meta device"),
        (nn.Linear(0, 8), {}, UsageError, r"odd.weight has no weights: its shape is \[8, 0\]"),
        (nn.Linear(64, 0), {}, UsageError, r"odd.weight has no weights: its shape is \[0, 64\]"),
        (nn.Linear(72, 8), {"format": "q4_0"}, UsageError, "blocks of 32 do not divide rows of 72"),
        (nn.Linear(64, 8), {"format": "nf5"}, UnknownFormat, "no format 'nf5'. Did you mean nf4"),
        (nn.Linear(64, 8), {"format": "iq2_xs"}, UsageError, "rung reads iq2_xs and does not write it"),
        (nn.Linear(64, 8), {"embeddings": "q9"}, UnknownFormat, "no format 'q9'"),
        (nn.Linear(64, 8), {"skip": ["od"]}, UsageError, r"skip: 'od' matches no layer. Did you mean odd"),
        (nn.Embedding(9, 64, max_norm=1.0), {"embeddings": "nf4"}, UsageError, "odd scales its rows"),
        (rung.quantize(nn.Linear(64, 8), "q8_0"), {}, UsageError, "odd is quantized already, to q8_0"),
        (rung.quantize(nn.Embedding(9, 64), "q8_0"), {}, UsageError, "odd is quantized already, to q8_0"),
        (nan(torch.nan, nn.Embedding(9, 64)), {"embeddings": "q8_0"}, CannotEncode, "Row 3 of odd.weight holds NaN"),
        (nn.Embedding(9, 72), {"embeddings": "q4_0"}, UsageError, "q4_0 cannot store odd.weight"),
        (nn.Linear(64, 8), {"keep": {"od": "int8"}}, UsageError, r"keep: 'od' matches no layer. Did you mean odd"),
        (nn.Linear(64, 8), {"keep": {"odd": "q9"}}, UnknownFormat, "no format 'q9'"),
        (nn.Linear(64, 8), {"skip": "*"}, UsageError, "no layer to quantize: skip leaves none"),
        (nn.Linear(64, 8), {"threshold": -1.0}, UsageError, "threshold is -1.0"),
        (nn.Linear(64, 8), {"threshold": float("nan")}, UsageError, "threshold is nan"),
        (nn.Linear(64, 8), {"compute_dtype": torch.int8}, UsageError, "compute_dtype is torch.int8"),
        (nn.Linear(64, 8), {"compute_dtype": torch.float8_e4m3fn}, UsageError, "compute_dtype is torch.float8_e4m3fn"),
        (nn.Linear(64, 8), {"compute_dtype": "float32"}, UsageError, "compute_dtype is 'float32'; it is torch.float32"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_what_is_refused_changes_nothing(broken, arguments, error, says):
    module = small(odd=broken)
    before = kinds(module)
    with pytest.raises(error, match=says) as refused:
        rung.quantize(module, **{"format": "nf4", **arguments})
    assert refused.value.ways_out
    assert kinds(module) == before


def test_rows_that_are_not_divided_have_two_ways_out():
    with pytest.raises(UsageError) as refused:
        rung.quantize(small(odd=nn.Linear(72, 8)), "q4_0")
    leave, other = refused.value.ways_out
    assert leave == "leave it out:  skip=['odd']"
    rung.quantize(small(odd=nn.Linear(72, 8)), "q4_0", skip=["odd"])
    rung.quantize(nn.Linear(72, 8), re.fullmatch(r"quantize to (\S+), .*", other)[1])


def test_a_module_without_layers():
    with pytest.raises(UsageError, match="LayerNorm has no layer to quantize"):
        rung.quantize(nn.LayerNorm(5), "nf4")
    with pytest.raises(UsageError, match="its embeddings and its head stay as they are") as refused:
        rung.quantize(nn.ModuleDict({"rows": nn.Embedding(9, 64), "lm_head": nn.Linear(64, 9)}), "nf4")
    assert refused.value.facts == ("left out: rows, lm_head",)


def mixture(**options):
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        **options,
    )
    config._experts_implementation = "eager"
    model = transformers.MixtralForCausalLM(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def test_experts():
    model = mixture()
    ids = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(1))
    plain = copy.deepcopy(model)
    rung.quantize(model, "q8_0")
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, QuantExperts)
    back = copy.deepcopy(experts).dequantize()
    plain.model.layers[0].mlp.experts = back
    for name, layer in model.named_modules():
        if isinstance(layer, QuantLinear):
            plain.set_submodule(name, layer.dequantize())
    with torch.no_grad():
        want = plain(ids).logits
        torch.testing.assert_close(model.train()(ids).logits, want, rtol=1e-4, atol=1e-4)
        assert formats.sqnr(want.numpy(), model.eval()(ids).logits.numpy()) > 30
    assert {name.split(".")[-1] for name, _ in experts.named_parameters()} == {"q8_0"}
    x = torch.randn(3, 64, requires_grad=True)
    experts(x, torch.tensor([[0, 3], [3, 1], [0, 4]]), torch.ones(3, 2)).sum().backward()
    assert x.grad.abs().sum() > 0


def test_an_expert_with_nan_is_named():
    model = mixture()
    with torch.no_grad():
        model.model.layers[0].mlp.experts.gate_up_proj[1, 2, 3] = torch.nan
    with pytest.raises(CannotEncode, match=r"Row 2 of model\.layers\.0\.mlp\.experts\.gate_up_proj\[1\] holds NaN"):
        rung.quantize(model, "nf4")
    assert not [layer for layer in model.modules() if isinstance(layer, QuantLinear | QuantExperts)]


def test_a_single_token_meets_the_experts_as_many_do():
    experts = rung.quantize(mixture(), "q8_0").model.layers[0].mlp.experts
    x, weights = torch.randn(3, 64), torch.rand(3, 2)
    chosen = torch.tensor([[0, 3], [3, 1], [4, 4]])  # four experts: 4 is what another device computes
    with torch.no_grad():
        together = experts(x, chosen, weights)
        alone = torch.cat([experts(x[n : n + 1], chosen[n : n + 1], weights[n : n + 1]) for n in range(3)])
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)
    assert not alone[2].any()
    assert alone[:2].abs().amax(1).min() > 1e-3


def test_experts_that_are_computed_in_another_way_are_refused():
    model = mixture()
    model.model.layers[0].mlp.experts.is_transposed = True
    with pytest.raises(UsageError, match=r"MixtralExperts keeps its experts as \[experts, in, out\]"):
        rung.quantize(model, "nf4")
    rung.quantize(model, "nf4", skip=["experts"])
