"""Compare the KL of folders in 4 bits by GPTQModel's GPTQ and AWQ with that of ``rung quantize --as gptq``.

    python benchmarks/quantization/beside_gptqmodel.py ORIGINAL.gguf [--tokens 1024] [--samples 4096] [--methods gptq]

ORIGINAL is a GGUF file in f32 or bf16 (``originals.py``). All have codes of 4 bits and a float16 scale for each 32
columns of the linear layers, AWQ's 4 bits for a zero point beside; embeddings and the head stay. All see the same text;
KL, in nats a token, is measured on text that none saw, in f32 on weights that rung decodes. Needs gptqmodel; on
two cores GPTQMODEL_CPU_WORKERS=2, without which 7.7.0 ends with "requests 2 workers but parent 'cpu' only has 1".
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mixed_texts import mixed

from rung.conversion.convert import converting
from rung.conversion.writing import write
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.kernels.cpu import target
from rung.models.lookup import find_card
from rung.quantization.divergence import Reference
from rung.quantization.text import windows

_LENGTH = 512


def theirs(method: str, source: Path, out: Path, samples: Any) -> None:
    """Write a folder by GPTQModel."""
    from gptqmodel import GPTQModel, QuantizeConfig

    more = {"format": "gemm"} if method == "awq" else {"sym": True}
    config = QuantizeConfig(bits=4, group_size=32, method=method, desc_act=False, device="cpu", **more)
    model = GPTQModel.load(str(source), config)
    examples = [{"input_ids": window[None], "attention_mask": window[None] * 0 + 1} for window in samples]
    model.quantize(examples, batch_size=1)
    model.save(str(out))


def main() -> None:
    """Print a row for each folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--methods", nargs="*", choices=("gptq", "awq"), default=("gptq", "awq"))
    arguments = parser.parse_args()
    target.configure()
    card = find_card(arguments.original, offline=True)
    tokenizer = Tokenizer.from_card(card)
    with tempfile.TemporaryDirectory(dir=Path(arguments.original).parent) as temporary:
        source, text = Path(temporary, "source"), Path(temporary, "text.txt")
        write(converting(card, False, "f32"), source, 2)
        text.write_text(mixed("calibration", 5 * arguments.samples))
        reference = Reference(
            card, windows(tokenizer, mixed("held-out", 5 * arguments.tokens), _LENGTH, arguments.tokens)
        )
        for name in (*arguments.methods, "rung"):
            began, result = time.monotonic(), Path(temporary, name)
            if name == "rung":
                options = ["--format", "q4_0", "--as", "gptq", "--text", str(text)]
                subprocess.run(
                    [sys.executable, "-m", "rung", "quantize", str(source), str(result), *options], check=True
                )
            else:
                theirs(name, source, result, windows(tokenizer, text.read_text(), _LENGTH, arguments.samples))
            took = time.monotonic() - began
            size = sum(path.stat().st_size for path in result.glob("*.safetensors"))
            kl = reference.compare(find_card(str(result), offline=True)).divergence
            print(f"{name}: KL {kl:.5f}, {size:,} bytes, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
