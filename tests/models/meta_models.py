"""The references of outlines: what transformers and diffusers build on the meta device from the same configuration.

``python tests/models/meta_models.py`` writes ``configs/references.json``: for each configuration the number of tensors
and weights and a hash of all names and shapes. The default suite holds outlines against that file, ``make test-all``
against the libraries themselves.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "configs"
REFERENCES = FOLDER / "references.json"

Shapes = dict[str, tuple[int, ...]]


def names() -> list[str]:
    """The names of all configurations."""
    return sorted(path.stem for path in FOLDER.glob("*.json") if path != REFERENCES)


def config(name: str) -> dict[str, Any]:
    """A configuration, without what it says of quantized storage: the libraries build the plain model."""
    found = json.loads((FOLDER / f"{name}.json").read_text())
    found.pop("quantization_config", None)
    return found


def built(found: dict[str, Any]) -> Shapes:
    """Names and shapes of the weights and stored buffers of the model, tied ones once."""
    import torch

    with torch.device("meta"):
        model = _diffusers(found) if "_class_name" in found else _transformers(found)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in tied}


def _transformers(found: dict[str, Any]) -> Any:
    import transformers

    options = {key: value for key, value in found.items() if key not in ("model_type", "torch_dtype")}
    architecture = getattr(transformers, found["architectures"][0])
    return architecture(architecture.config_class.from_dict(options))


def _diffusers(found: dict[str, Any]) -> Any:
    import diffusers

    return getattr(diffusers, found["_class_name"]).from_config(found)


def fingerprint(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """A hash of names and shapes, in whatever order they come."""
    text = "\n".join(f"{name} {list(shape)}" for name, shape in sorted(shapes))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def reference(shapes: Shapes) -> dict[str, Any]:
    """Return the entry of a model in ``references.json``."""
    import math

    count = sum(math.prod(shape) for shape in shapes.values())
    return {"tensors": len(shapes), "parameters": count, "names_and_shapes": fingerprint(shapes.items())}


if __name__ == "__main__":
    old = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    chosen = sys.argv[1:] or names()
    found = {**old, **{name: reference(built(config(name))) for name in chosen}}
    REFERENCES.write_text(json.dumps({name: found[name] for name in sorted(found)}, indent=1) + "\n")
