"""transformers, PEFT and bitsandbytes with rung's layers on the device, where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks.accept.check import Check, Target

from rung.run.torch_device import torch_name

ORDER, SECONDS = 10, 300


def run(target: Target) -> Iterator[Check]:
    """Quantize a small Llama, train a LoRA on it for some steps, and multiply with bitsandbytes' operators."""
    parts: dict[str, tuple[tuple[str, ...], Callable[[str], dict[str, Any]]]] = {
        "transformers in q8_0": (("transformers",), _transformers),
        "a LoRA on nf4": (("transformers", "peft"), _lora),
        "bitsandbytes' nf4": (("bitsandbytes",), _bitsandbytes),
    }
    device = torch_name(target.device.id)
    for name, (packages, look) in parts.items():
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            yield Check(name, None, {"missing": missing})
            continue
        facts = look(device)
        yield Check(name, facts["error"] <= facts["bar"], facts)


def _llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def _transformers(device: str) -> dict[str, Any]:
    import torch

    from rung.nn.quantize import quantize

    model, ids = _llama(), torch.arange(32)[None] * 7 % 256
    with torch.no_grad():
        want = model(ids).logits
        quantize(model, "q8_0")
        got = model.to(device)(ids.to(device)).logits.cpu()
    return {"error": float((got - want).norm() / want.norm()), "bar": 0.02}


def _lora(device: str) -> dict[str, Any]:
    """Compare losses with those of the decoded weights in torch's own layers on the processor."""
    import torch

    from rung import formats
    from rung.nn.quantize import quantize

    plain, model = _llama(), _llama()
    for name, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            stored = formats.encode(module.weight.detach().numpy(), formats.get("nf4"), name)
            module.weight.data = torch.from_numpy(formats.decode(stored))
    quantize(model, "nf4")
    want, got = _losses(plain, "cpu"), _losses(model, device)
    return {"losses": got, "error": max(abs(one / two - 1) for one, two in zip(got, want, strict=True)), "bar": 2e-3}


def _losses(model: Any, device: str) -> list[float]:
    """Return the losses of some steps of training a LoRA."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])).to(device)
    ids = (torch.arange(32)[None] * 7 % 256).to(device)
    optimizer = torch.optim.AdamW([each for each in tuned.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for _ in range(12):
        loss = tuned(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def _bitsandbytes(device: str) -> dict[str, Any]:
    import bitsandbytes
    import torch

    from rung.hub.bitsandbytes import install

    install()
    torch.manual_seed(0)
    weight, x = torch.randn(256, 512), torch.randn(3, 512)
    codes, state = bitsandbytes.functional.quantize_4bit(weight.to(device), quant_type="nf4")
    got = bitsandbytes.matmul_4bit(x.to(device), codes.t(), state).cpu()
    want = x @ bitsandbytes.functional.dequantize_4bit(codes, state).cpu().T
    return {"error": float((got - want).norm() / want.norm()), "bar": 0.02}
