"""The activations of training, against what autograd keeps of a model of transformers."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from rung import formats
from rung.models.card import Tensor
from rung.models.networks.component import describe
from rung.planning.network_spec import Subject
from rung.planning.training import _LOGITS, activation_bytes, adapter_weights
from rung.planning.weight_plan import Weight

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 352, "vocab_size": 64,
    "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip


def kept(dtype):
    """Bytes that autograd keeps between the way forth and the way back of two sequences of 128 tokens."""
    config = transformers.LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"})
    model = transformers.LlamaForCausalLM._from_config(config, dtype=dtype)
    own = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers())}
    found = {}

    def keep(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = (storage.nbytes(), value)  # held, so that no address is used twice
        return value

    tokens = torch.zeros(2, 128, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        model(tokens, labels=tokens, use_cache=False)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_activations_are_what_autograd_keeps(dtype, width):
    subject = Subject.of_component(describe(CONFIG, "config.json"), "config", "x")
    predicted = activation_bytes(subject, 2, 128, False, width)
    going_back = 2 * 128 * 3 * width * CONFIG["intermediate_size"]  # of the way back, which is not gone
    assert predicted - going_back == pytest.approx(kept(dtype), rel=0.1)


def test_checkpoints_keep_the_inputs_of_layers_and_one_layer():
    subject = Subject.of_component(describe(CONFIG, "config.json"), "config", "x")
    whole, lean = (activation_bytes(subject, 2, 128, checkpointing, 2) for checkpointing in (False, True))
    going_back = 2 * 128 * 3 * 2 * CONFIG["intermediate_size"]
    assert lean - going_back == pytest.approx((whole - going_back) / 4 + 4 * 2 * 128 * 2 * 128)


@pytest.mark.parametrize(
    ("role", "shape", "numbers"),
    [
        ("layers.0.q", (8, 16), 8 + 16),
        ("layers.0.experts.up", (4, 8, 16), 4 * (8 + 16)),  # each expert has an adapter of its own
        ("layers.0.attention_norm", (16,), 0),
        ("embed", (64, 16), 0),
        ("head", (64, 16), 0),
        ("layers.0.router", (4, 16), 0),
    ],
)
def test_adapters_stand_on_matrices_of_layers_and_on_each_expert(role, shape, numbers):
    tensor = Tensor(role, role, shape, "f32", 0, 0, math.prod(shape) * 4)
    weight = Weight(tensor, formats.get("f32"), "stored", "ref", tensor.bytes)
    assert adapter_weights([weight, weight], 3) == 2 * 3 * numbers


class Live(TorchDispatchMode):
    """Counts the bytes of storages that live at once."""

    def __init__(self):
        super().__init__()
        self.sizes, self.most = {}, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        results = function(*arguments, **(options or {}))
        for value in results if isinstance(results, (tuple, list)) else [results]:
            storage = value.untyped_storage()
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.most = max(self.most, sum(self.sizes.values()))
        return results


@pytest.mark.parametrize(
    ("dtype", "cast", "loaded", "most"), [("bf16", True, False, 12), ("f16", False, False, 6), ("f16", False, True, 8)]
)
def test_what_the_loss_takes_of_each_token_and_word(dtype, cast, loaded, most):
    """12 bytes where it is computed in f32, as under autocast; in f16 half of that, and the logits while held."""
    tokens, words, tensor = 256, 50000, torch.empty
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    hidden = tensor(tokens, 8, dtype=kind, device="meta", requires_grad=True)
    head, labels = tensor(words, 8, dtype=kind, device="meta"), tensor(tokens, dtype=torch.long, device="meta")

    def loss():
        logits = torch.nn.functional.linear(hidden, head)
        shifted = logits[:-1].contiguous()
        return torch.nn.functional.cross_entropy(shifted.float() if cast else shifted, labels[1:]), logits

    with Live() as live:
        found, logits = loss()
        if not loaded:
            del logits
        found.backward()
    assert live.most == pytest.approx(most * tokens * words, rel=0.02)
    assert not cast or most == _LOGITS
