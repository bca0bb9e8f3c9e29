"""Folders of Hugging Face through ``rung.load``, against transformers: all architectures, ropes, and formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import rung
from rung import formats
from tests import tiny
from tests.fixtures import references
from tests.fixtures.references import F32_DIVERGENCE, QUANTIZED_DIVERGENCE, SAME_CHOICE
from tests.real.conftest import Make, copy_tokenizer

IDS = np.concatenate(([1], np.random.default_rng(3).integers(3, 300, 47)))
PROMPT = "the model number 12 runs on a device with many things, and more words than 32 tokens hold."
CONTEXT = 128


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


def longrope(original: int) -> dict[str, Any]:
    """Phi-3 whose long factors apply to contexts above ``original``."""
    factors = {"short_factor": [1.0 + 0.1 * n for n in range(8)], "long_factor": [1.5 + 0.8 * n for n in range(8)]}
    scaled = rope("longrope", **factors, original_max_position_embeddings=original)
    return {**scaled, "original_max_position_embeddings": original, "max_position_embeddings": 512}


LOCAL = {"rope_type": "default", "rope_theta": 10000.0}
GLOBAL = {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{model_type: (model_type, {}) for model_type in tiny.MODEL_TYPES},
    "mistral-window": ("mistral", {"sliding_window": 8}),
    "llama-linear": ("llama", rope("linear", factor=4.0)),
    "llama-llama3": ("llama", {"rope_parameters": tiny.LLAMA3_ROPE}),
    "qwen3-yarn": ("qwen3", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "phi3-long": ("phi3", longrope(32)),
    "phi3-short": ("phi3", longrope(256)),
    "gemma3-linear": ("gemma3_text", {"rope_parameters": {"full_attention": GLOBAL, "sliding_attention": LOCAL}}),
}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_key_value_heads": 1}


def reference(model: Any) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.from_numpy(IDS)[None]).logits[0].numpy()


def check(model: Any, expected: np.ndarray, bar: float) -> None:
    """Read as a prompt, and fed one token after the other."""
    for logits in (model.logits(IDS.tolist()).numpy(), references.token_by_token(model, IDS)):
        found = references.agreement(expected, logits)
        assert found.divergence < bar
        assert found.same_choice >= SAME_CHOICE
    assert model.report.steps == ()


@pytest.mark.parametrize("kind", KINDS)
def test_f32_is_what_transformers_computes(make: Make, kind: str) -> None:
    model_type, overrides = KINDS[kind]
    folder, theirs = make(model_type, **overrides)
    ours = rung.load(folder, format="f32", device="cpu", context=CONTEXT)
    check(ours, reference(theirs), F32_DIVERGENCE)
    answer = ours.generate(PROMPT, temperature=0, max_tokens=24)
    list(answer)
    prompt = torch.tensor([ours.tokenizer.encode(PROMPT, special=True, bos=True)])
    assert prompt.shape[1] == answer.result["prompt_tokens"] > 32
    with torch.inference_mode():
        full = theirs.generate(prompt, do_sample=False, max_new_tokens=24, attention_mask=torch.ones_like(prompt))
    expected = [token for token in full[0, prompt.shape[1] :].tolist() if token != theirs.config.eos_token_id]
    assert answer.result["tokens"] == expected


def quantized(model: Any, format: str, head: str) -> Any:
    """The same model with every matrix stored in a format and decoded again; embedding and head in ``head``."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                chosen = formats.get(head if "embed" in name or "lm_head" in name else format)
                stored = formats.encode(parameter.numpy(), chosen, name)
                parameter.copy_(torch.from_numpy(formats.decode(stored)))
    return model


@pytest.mark.parametrize("model_type", ["llama", "gemma"])
@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("bf16", "bf16"),
        ("f16", "f16"),
        ("q8_0", "q8_0"),
        ("int8", "int8"),
        ("q6_k", "q6_k"),
        ("q4_k", "q6_k"),
        ("q4_0", "q6_k"),
        ("nf4", "q6_k"),
        ("fp4:128:nested", "q6_k"),
    ],
)
def test_encoded_on_the_fly(make: Make, model_type: str, format: str, head: str) -> None:
    """A folder in f32 is stored in the format that was asked for; coarse ones keep the head and its table finer."""
    folder, theirs = make(model_type, **WIDE)
    plain = reference(theirs)
    ours = rung.load(folder, format=format, device="cpu", context=CONTEXT)
    expected = reference(quantized(theirs, format, head))
    check(ours, expected, QUANTIZED_DIVERGENCE)
    assert ours.plan.format == formats.get(format).name
    assert {part.format for part in ours.plan.parts} == {head} - {format}
    lost = references.agreement(plain, expected).divergence
    if format in ("q4_k", "q4_0", "nf4"):  # so that logits of the model as it was would not pass
        assert lost > 2 * QUANTIZED_DIVERGENCE


def test_rows_that_blocks_do_not_divide_take_the_next_better_format(make: Make) -> None:
    folder, theirs = make("qwen3")
    ours = rung.load(folder, format="q6_k", device="cpu", context=CONTEXT)
    assert {part.format for part in ours.plan.parts} == {"q8_0"}
    assert all("do not divide rows of" in part.reason for part in ours.plan.parts)
    check(ours, reference(quantized(theirs, "q8_0", "q8_0")), QUANTIZED_DIVERGENCE)


def test_gemma3_with_vision_runs_as_text(make: Make, tmp_path: Path) -> None:
    folder, text = make("gemma3_text")
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text.config.to_dict(),
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    whole = transformers.Gemma3ForConditionalGeneration(config).float()
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.save_pretrained(tmp_path)
    copy_tokenizer(folder, tmp_path)
    check(rung.load(tmp_path, format="f32", device="cpu", context=CONTEXT), reference(text), F32_DIVERGENCE)
