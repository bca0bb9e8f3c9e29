"""How near the logits of rung come to the reference on every GGUF fixture, beside llama.cpp's own.

    python benchmarks/accuracy.py [--only NAME ...]

The reference is transformers on the file's weights decoded to f32; llama.cpp's figures were recorded when the
fixtures were made (tests/fixtures/make_gguf.py) on its CPU backend with its default settings.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fixtures"))
import references

import rung


def main() -> None:
    """Print one row per fixture; the exit status is 1 if one misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="names of fixtures")
    only = parser.parse_args().only
    missed = 0
    print("| file | KL prompt | KL by token | KL llama.cpp | bar | same choice | met |\n|---|---|---|---|---|---|---|")
    for fixture in references.fixtures():
        if only and fixture.name not in only:
            continue
        ids, expected = fixture.reference()
        model = rung.load(str(fixture.path), device="cpu", context=fixture.context)
        prompt = references.agreement(expected, model.logits(ids.tolist()).numpy())
        tokens = references.agreement(expected, references.token_by_token(model, ids))
        divergence = max(prompt.divergence, tokens.divergence)
        same = min(prompt.same_choice, tokens.same_choice)
        met = divergence < fixture.bar and same >= references.SAME_CHOICE
        missed += not met
        print(
            f"| {fixture.name} | {prompt.divergence:.1e} | {tokens.divergence:.1e} | {fixture.peer.divergence:.1e} "
            f"| {fixture.bar:.1e} | {same:.1%} | {'yes' if met else 'no'} |",
            flush=True,
        )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
