"""The page (README.md) of a quantized model: what it was, what it is held in, and how to load it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch import nn

from rung.core.text import count, size
from rung.core.version import __version__
from rung.nn import QuantEmbedding, QuantExperts, QuantLinear, QuantWeight

_KINDS = {QuantLinear: "linear layer", QuantEmbedding: "embedding", QuantExperts: "expert layer"}
_TEXT = """# {name}

{origin} with quantized weights, as rung {version} saved it: {size} instead of {plain} in 16 bits.

| layers | format | bits a weight |
|---|---|---|
{rows}

Everything else is as it was. Any device runs it, in transformers:

```python
import rung  # pip install 'rung[run]'
from transformers import {kind}

model = {kind}.from_pretrained("{place}")
```
"""


def text(model: Any, folder: str) -> str:
    """The page of a model that is found at ``folder``, a folder or the name of a repository."""
    origin = str(getattr(model.config, "_name_or_path", ""))
    base = origin if _is_repository(origin) and origin != folder else None
    data = ModelCardData(
        library_name="transformers",
        tags=list(model.model_tags or []),
        base_model=base,
        base_model_relation="quantized" if base else None,
    )
    weights = [each for each in model.modules() if isinstance(each, QuantWeight)]
    coded = {part for weight in weights for part in weight.parameters()}
    left = sum(part.nbytes for part in model.parameters() if part not in coded)
    rows = [
        f"| {count(number, kind)} | {name} | {bits:.2f} |"
        for (kind, name, bits), number in sorted(_counts(model).items())
    ]
    body = _TEXT.format(
        name=folder.rpartition("/")[2],
        origin=f"[{base}](https://huggingface.co/{base})" if base else f"A {type(model).__name__}",
        version=__version__,
        size=size(left + sum(part.nbytes for part in coded)),
        plain=size(left + sum(2 * weight.shape[0] * weight.shape[1] for weight in weights)),
        rows="\n".join(rows),
        kind=type(model).__name__,
        place=folder,
    )
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def _counts(model: nn.Module) -> Counter[tuple[str, str, float]]:
    """How many layers of a kind there are in each format."""
    found: Counter[tuple[str, str, float]] = Counter()
    for layer in model.modules():
        if type(layer) in _KINDS:
            format = next(weight.format for weight in layer.modules() if isinstance(weight, QuantWeight))
            found[_KINDS[type(layer)], format.name, format.bits] += 1
    return found


def _is_repository(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name and not Path(name).exists()


class Saving:
    """Stands before ``save_pretrained`` of a model: where the folder has no page, it gets one."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, save_directory: Any, *args: Any, **options: Any) -> Any:
        """As the model's own."""
        result = type(self.model).save_pretrained(self.model, save_directory, *args, **options)
        page = Path(save_directory) / "README.md"
        if _counts(self.model) and page.parent.is_dir() and not page.exists():
            page.write_text(text(self.model, page.parent.name), encoding="utf-8")
        return result


class Uploading:
    """Stands before the upload of a saved model: a repository without a page gets one."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, working_dir: Any, repo_id: str, *args: Any, token: Any = None, **options: Any) -> Any:
        """As the model's own."""
        if _counts(self.model):
            try:
                ModelCard.load(repo_id, token=token)
            except EntryNotFoundError:
                (Path(working_dir) / "README.md").write_text(text(self.model, repo_id), encoding="utf-8")
        return type(self.model)._upload_modified_files(self.model, working_dir, repo_id, *args, token=token, **options)


def attach(model: Any) -> None:
    """From now on the model is saved and uploaded with its page."""
    model.save_pretrained, model._upload_modified_files = Saving(model), Uploading(model)
