"""Latte at its real shape with random weights, inside a budget: the plan's memory beside the measured peak.

    python benchmarks/latte.py FOLDER [--frames 16] [--size 512x512] [--steps 2] [--memory 8GB] [--layers 28 24]
    python benchmarks/latte.py FOLDER --phase denoise ...   that phase alone, the others' results are zeros
    python benchmarks/latte.py FOLDER --errors [--frames 2] ...   the denoiser in int8 and nf4 against f32, and frames

FOLDER gets 12 GB of weights, written a tensor at a time (T5-XXL's encoder, 4.8 billion; the denoiser, 1.06 billion;
Stable Diffusion's autoencoder), unless they are there. The run is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

_POOL = 1 << 24


def write_weights(path: Path, network: torch.nn.Module) -> None:
    """The network's tensors in bfloat16: ones for norms, normal values of deviation 0.02 for the rest."""
    pool = (torch.randn(_POOL, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    tensors = {name: value for name, value in network.state_dict().items() if value.is_floating_point()}
    tensors.pop("encoder.embed_tokens.weight", None)  # T5's shared one
    header, end = {}, 0
    for name, value in tensors.items():
        begin, end = end, end + 2 * value.numel()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, value in tensors.items():
            ones = value.dim() == 1 and name.endswith("weight")
            left, start = value.numel(), hash(name) % (_POOL // 2)
            while left:
                part = torch.ones(left, dtype=torch.bfloat16) if ones else pool[start : start + left]
                file.write(part.view(torch.uint8).numpy().tobytes())
                left, start = left - len(part), 0


def tokenizer() -> Any:
    """Words of the prompt; T5's own is not needed for random weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        word: at for at, word in enumerate(["<pad>", "</s>", "<unk>", "a", "cat", "runs", "over", "the", "sea"])
    }
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def write_folder(folder: Path, denoiser_layers: int, encoder_layers: int) -> None:
    """The whole pipeline."""
    from accelerate import init_empty_weights
    from diffusers import AutoencoderKL, DDIMScheduler, LatteTransformer3DModel
    from transformers import T5Config, T5EncoderModel

    t5 = T5Config(
        vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=encoder_layers, num_heads=64,
        feed_forward_proj="gated-gelu", architectures=["T5EncoderModel"],
    )  # fmt: skip
    with init_empty_weights():
        encoder = T5EncoderModel(t5)
        denoiser = LatteTransformer3DModel(
            num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=denoiser_layers,
            cross_attention_dim=1152, attention_bias=True, sample_size=64, patch_size=2,
            activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_single",
            norm_elementwise_affine=False, norm_eps=1e-6, caption_channels=4096, video_length=16,
        )  # fmt: skip
        autoencoder = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=512,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        )  # fmt: skip
    parts = {"text_encoder": encoder, "transformer": denoiser, "vae": autoencoder}
    for name, network in parts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        network.config.save_pretrained(folder / name) if name == "text_encoder" else network.save_config(folder / name)
        stem = "model" if name == "text_encoder" else "diffusion_pytorch_model"
        print(f"writing {name}: {sum(math.prod(p.shape) for p in network.parameters()) / 1e6:,.0f} million", flush=True)
        write_weights(folder / name / f"{stem}.safetensors", network)
    tokenizer().save_pretrained(folder / "tokenizer")
    DDIMScheduler(beta_schedule="linear", clip_sample=False).save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "LattePipeline",
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "transformer": ["diffusers", "LatteTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))


def alone(folder: Path, wanted: str, frames: int, size: str, steps: int, memory: str) -> None:
    """The planned and the measured peak of one phase; the peak is said after each call."""
    from rung.cli.making import device_named, pixels
    from rung.engine import system
    from rung.hub.pipelines import Folder
    from rung.pipelines import generate
    from rung.pipelines.perform import Performance
    from rung.pipelines.rehearse import Rehearsal

    system.keep_heap_whole()
    opened = Folder(folder)
    others = Rehearsal(opened)

    class Alone(Performance):
        def perform(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.phase(name) != wanted:
                return others.perform(name, method, args, kwargs)
            if not self._resident:
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            result = super().perform(name, method, args, kwargs)
            planned = next(one.memory.total for one in self.plan.phases if one.name == wanted)
            peak = system.peak_memory()
            print(f"{wanted}: {name} {self.plan.held(name)}, {self.plan.held(name).at_once} at once", end=": ")
            words = f"planned {planned / 2**30:.2f} GB, measured {peak / 2**30:.2f} GB ({planned / peak - 1:+.1%})"
            print(words, flush=True)
            return result

    generate.Performance = Alone  # type: ignore[misc]
    pipeline = generate.Pipeline(opened, device_named("cpu"), memory=memory)
    settings = generate.Settings("a cat runs over the sea", frames=frames, size=pixels(size), steps=steps)
    list(pipeline.make([settings]))


def errors(folder: Path, frames: int, size: str, steps: int) -> None:
    """The denoiser against f32, beside plain f32 layers with the same decoded weights; and the frames."""
    from rung.cli.making import device_named, pixels
    from rung.hub.pipelines import Folder
    from rung.measure.metrics import psnr
    from rung.nn import QuantLinear
    from rung.nn.quantise import put
    from rung.pipelines.generate import Pipeline, Settings
    from rung.pipelines.weights import fill
    from rung.planning.phases import Held

    opened, (width, height) = Folder(folder), pixels(size) or (512, 512)
    made = torch.Generator().manual_seed(0)
    noise, text = (
        torch.randn(shape, generator=made) for shape in ((1, 4, frames, height // 8, width // 8), (1, 120, 4096))
    )

    def filled(name: str) -> Any:
        held, there = Held(name, "f32", 1), folder / "transformer"
        return fill(opened.network("transformer"), there, held, torch.device("cpu"), lambda done, total: None)

    def run(network: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = network(noise, torch.tensor([500]), text, return_dict=False)[0]
        return found

    exact = run(filled("f32"))
    for name in ("int8", "nf4"):
        network = filled(name)
        ours = float((run(network) - exact).norm() / exact.norm())
        for key, layer in list(network.named_modules()):
            if isinstance(layer, QuantLinear):
                put(network, key, layer.dequantize())
        plain = float((run(network) - exact).norm() / exact.norm())
        print(f"{name}: error {ours:.5f}, of plain decoded layers {plain:.5f}: {ours / plain:.3f} x", flush=True)
    cpu = device_named("cpu")
    settings = Settings("a cat runs over the sea", frames=frames, size=(width, height), steps=steps)
    (reference,) = Pipeline(opened, cpu).make([settings])
    for name in ("int8", "nf4"):
        (other,) = Pipeline(opened, cpu, format=name).make([settings])
        print(f"{name}: frames {psnr(other.frames, reference.frames):.1f} dB PSNR against the plan's own", flush=True)


def processor_seconds() -> float:
    """What processes started from here have computed, on all cores; waiting for a busy machine is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--phase", choices=("encode", "denoise", "decode"))
    parser.add_argument("--layers", type=int, nargs=2, default=(28, 24), metavar=("DENOISER", "ENCODER"))
    asked = parser.parse_args()
    if not (asked.folder / "model_index.json").exists():
        write_folder(asked.folder, *asked.layers)
    config = asked.folder / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"video_length": asked.frames}))
    if asked.phase:
        alone(asked.folder, asked.phase, asked.frames, asked.size, asked.steps, asked.memory)
        return
    if asked.errors:
        errors(asked.folder, asked.frames, asked.size, asked.steps)
        return
    rung = [sys.executable, "-m", "rung", "video", str(asked.folder)]
    given = [
        "a cat runs over the sea",
        "--frames",
        str(asked.frames),
        "--size",
        asked.size,
        "--steps",
        str(asked.steps),
    ]
    for card in ("2080ti", "rtx 2070", "rtx 3070"):
        print(
            *subprocess.run(
                [*rung, *given, "--plan", "--device", f"sim:{card}"], capture_output=True, text=True
            ).stdout.splitlines(),
            sep="\n",
        )
    out = asked.folder / "latte.mp4"
    command = [*rung, *given, "--memory", asked.memory, "--device", "cpu", "--out", str(out), "--json"]
    before = processor_seconds()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    spent = processor_seconds() - before
    (result,) = json.loads(done.stdout)
    for phase in result["plan"]["phases"]:
        seconds = result["phase_seconds"][phase["name"]]
        print(f"{phase['name']:8} {seconds:6.0f} s {phase['memory']} {phase['held']}")
    predicted, peak = result["predicted_bytes"] / 2**30, result["peak_bytes"] / 2**30
    took = f"{result['seconds']:.0f} s, {spent:.0f} s of processor time"
    print(f"{result['frames']} frames of {asked.size}, {asked.steps} steps: {took}")
    print(f"predicted {predicted:.2f} GB, measured {peak:.2f} GB ({predicted / peak - 1:+.1%}), budget {asked.memory}")


if __name__ == "__main__":
    main()
