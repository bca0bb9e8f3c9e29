"""Traces of modules: operations, bytes and peaks counted by hand, and the lines of those that cannot be traced."""

import json

import pytest
import torch
import transformers
from torch import nn

import rung
from rung.core.errors import CannotTrace


class MLP(nn.Module):
    """Two layers, and the first result is dropped before the second is made."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def test_a_feed_forward_part_by_hand():
    module, x = MLP(), torch.ones(8, 16)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = rung.trace(module, x)
    product = next(operation for operation in found.operations if operation.name == "mm")
    assert (product.calls, product.flops) == (2, 2 * 2 * 8 * 16 * 64)
    assert product.bytes == 2 * 4 * (8 * 16 + 16 * 64 + 8 * 64)
    assert found.flops == product.flops
    assert (found.parameters, found.weight_bytes, found.outputs) == (2048, 4 * 2048, 4 * 8 * 16)
    assert found.peak_activations == 4 * 2 * 8 * 64  # the wide result and its relu
    assert all(torch.equal(value, before[name]) and not value.is_meta for name, value in module.state_dict().items())
    assert found == rung.Trace.from_json(json.loads(json.dumps(found.to_json())))


def test_weights_without_values_and_half_precision():
    with torch.device("meta"):
        module = MLP().half()
    full, half = rung.trace(MLP(), torch.ones(8, 16)), rung.trace(module, torch.ones(8, 16).half())
    assert (half.flops, half.calls) == (full.flops, full.calls)
    assert 2 * half.weight_bytes == full.weight_bytes
    assert 2 * half.peak_activations == full.peak_activations
    assert 2 * half.bytes == full.bytes


def test_tied_weights_count_once_and_views_move_nothing():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("table", torch.ones(8))

        def forward(self, tokens):
            return self.head(self.embed(tokens).transpose(0, 1).transpose(0, 1) * self.table)

    found = rung.trace(Tied(), torch.zeros(1, 5, dtype=torch.long))
    assert (found.parameters, found.weight_bytes) == (256, 4 * (256 + 8))
    assert next(operation for operation in found.operations if operation.name == "transpose").bytes == 0


def test_in_place_results_take_no_memory():
    class Inplace(nn.Module):
        def forward(self, x):
            y = x + 1
            for _ in range(10):
                y.mul_(2)
            return y

    assert rung.trace(Inplace(), torch.ones(100)).peak_activations == 400


def test_fused_attention_holds_no_scores():
    class Attention(nn.Module):
        def forward(self, q, k):
            return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)

    q, k = torch.empty(1, 4, 128, 16, device="meta"), torch.empty(1, 4, 128, 16, device="meta")
    found = rung.trace(Attention(), q, k)
    assert found.flops == 2 * 2 * 4 * 128 * 128 * 16
    assert found.peak_activations == 4 * 4 * 128 * 16


def test_flops_and_peak_are_those_of_the_real_pass():
    """Against torch's own counter on real tensors, and the results that a hook sees alive."""
    from torch.utils.flop_counter import FlopCounterMode

    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    x = torch.ones(2, 3, 8, 8)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        real = module(x)
    found = rung.trace(module, x)
    assert found.flops == counter.get_total_flops()
    assert found.outputs == real.numel() * 4


def test_devices_that_are_not_here_do_not_matter():
    class Elsewhere(nn.Module):
        def forward(self, x):
            mask = torch.ones(4, device="cuda")
            return x.to("cuda") + mask + torch.arange(4)

    assert rung.trace(Elsewhere(), torch.ones(4)).outputs == 16


def test_numbers_that_depend_on_no_input_are_computed():
    class Table(nn.Module):
        def forward(self, x):
            return x[: int(torch.arange(5).sum())]

    assert rung.trace(Table(), torch.ones(100)).outputs == 40


class Decides(nn.Module):
    def forward(self, x, how):
        if how == "bool":
            return x if x.sum() > 0 else -x
        if how == "item":
            return x * x.max().item()
        if how == "nonzero":
            return x.nonzero()
        if how == "mask":
            return x[x > 0]
        if how == "numpy":
            return x.numpy()
        if how == "tolist":
            return x.tolist()
        raise ValueError("a mistake of its own")


@pytest.mark.parametrize("how", ["bool", "item", "nonzero", "mask", "numpy", "tolist"])
def test_a_module_that_looks_at_values_is_named_with_its_line(how):
    with pytest.raises(CannotTrace, match="shapes only") as error:
        rung.trace(Decides(), torch.ones(4), how)
    (fact,) = error.value.facts
    assert __file__ in fact
    assert "in forward: return x" in fact
    assert {"bool": "x.sum() > 0", "mask": "x[x > 0]"}.get(how, f".{how}()") in fact


def test_tokens_and_masks_keep_their_values():
    class Masked(nn.Module):
        def forward(self, x, mask):
            if mask.all():
                return x
            return x[mask.nonzero().flatten()]

    x = torch.ones(6, 10)
    assert rung.trace(Masked(), x, torch.ones(6, dtype=torch.bool)).outputs == 4 * 60
    assert rung.trace(Masked(), x, torch.tensor([1, 0, 1, 0, 0, 0], dtype=torch.bool)).outputs == 4 * 20
    large = torch.ones(2**17, dtype=torch.bool)
    with pytest.raises(CannotTrace):
        rung.trace(Masked(), torch.ones(2**17, 1), large)


def test_errors_of_the_module_go_on_as_they_are():
    with pytest.raises(ValueError, match="a mistake of its own"):
        rung.trace(Decides(), torch.ones(4), "")
    with pytest.raises(RuntimeError, match=r"reduction dim|cannot be multiplied"):
        rung.trace(MLP(), torch.ones(8, 17))
    assert torch.ones(1).device.type == "cpu"  # every mode is gone again


def test_a_language_model_of_transformers():
    """Products of all weights for each token, and attention over all of them."""

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=128
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    tokens = 32
    found = rung.trace(model, torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    weights = 2 * (4 * 64 * 64 + 3 * 64 * 256) + 64 * 128
    attention = 2 * 2 * 2 * tokens * tokens * 64
    assert found.flops == 2 * tokens * weights + attention
    assert found.outputs == 4 * tokens * 128
    assert found.parameters == sum(value.numel() for value in model.parameters())


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="this torch multiplies experts one by one")
def test_a_mixture_of_experts():
    """Each token visits two of eight experts; the class that asks which ones were chosen cannot be traced."""
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128
    )
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config).bfloat16()
    tokens = torch.zeros(1, 16, dtype=torch.long)
    found = rung.trace(model, tokens, use_cache=False)
    grouped = next(operation for operation in found.operations if operation.name == "_grouped_mm")
    assert grouped.flops == 2 * 2 * 16 * 2 * (3 * 64 * 128)
    config._experts_implementation = "eager"
    with pytest.raises(CannotTrace) as error:
        rung.trace(model, tokens, use_cache=False)
    assert "expert_hit" in error.value.facts[0]
