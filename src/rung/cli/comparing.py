"""The runs behind ``rung compare``: one format after the other, so that one is in memory at a time."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rung.core.errors import UsageError
from rung.core.files import read_text, writing
from rung.models.card import ModelCard
from rung.models.networks.pipeline import INDEX

if TYPE_CHECKING:
    from rung.engine.model import Model
    from rung.hub.diffusers.pipelines import Folder

Rows = list[dict[str, Any]]
#: Tokens that are written for the speed of writing.
_WRITTEN = 32


def is_pipeline(model: str, offline: bool) -> bool:
    """Return whether it is a pipeline of diffusers, here or on the hub, which is not asked ``offline``."""
    from rung.models.lookup import find_outline

    path = Path(model).expanduser()
    if path.exists():
        return (path / INDEX).is_file() or path.name == INDEX
    return model.count("/") == 1 and find_outline(model, offline=offline).kind == "pipeline"


def pipelines(
    folder: Folder, formats: Sequence[str], against: str, settings: dict[str, Any], device: str | None,
    memory: str | None, picture: Path | None,
) -> Rows:  # fmt: skip
    """A row a format, the reference first; frames of the same noise."""
    from rung.cli.making import device_named
    from rung.measure import metrics, pictures
    from rung.pipelines.generate import Pipeline, Settings

    if picture is not None:
        pictures.check_destination(picture, 1)
    chosen = device_named(device)
    rows: Rows = []
    results = {}
    for name in dict.fromkeys((against, *formats)):
        if not rows:  # what is imported, compiled and read from the disk for the first time is no format's
            list(Pipeline(folder, chosen, memory=memory, format=name).make([Settings(**{**settings, "steps": 1})]))
        (output,) = Pipeline(folder, chosen, memory=memory, format=name).make([Settings(**settings)])
        results[name] = output.frames
        rows.append(
            {
                "format": name,
                "memory": output.plan.most,
                "seconds": round(output.seconds, 2),
                "PSNR dB": metrics.psnr(output.frames, results[against]),
                "SSIM": metrics.ssim(output.frames, results[against]),
            }
        )
    if picture is not None:
        pictures.sheet(picture, results)
    return rows


def language(
    model: str, formats: Sequence[str], against: str, text: Path | None, context: int, load: dict[str, Any],
    picture: Path | None,
) -> Rows:  # fmt: skip
    """A row a format, the reference first."""
    from rung.measure import compare
    from rung.measure.curves import check_curves, curves

    words = compare.TEXT if text is None else read_text(text)
    if picture is not None:
        check_curves(picture)
    rows: Rows = []
    errors: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory(prefix="rung-compare-") as folder:
        reference = compare.Reference(Path(folder))
        for name in dict.fromkeys((against, *formats)):
            rows.append(_language(model, name, words, context, load, reference, first=not rows, errors=errors))
    if picture is not None:
        shown = {name: list(found.items()) for name, found in errors.items() if name != against}
        with writing(picture):
            curves(picture, shown, f"{Path(model).name}: weights against {against}", "layer", "SQNR, dB")
    return rows


def _language(
    model: str, format: str, words: str, context: int, load: dict[str, Any], reference: Any, *, first: bool,
    errors: dict[str, dict[int, float]],
) -> dict[str, Any]:  # fmt: skip
    from rung.engine.load import load as load_model
    from rung.measure import compare

    loaded = load_model(model, format=format, context=context, **load)
    ids = loaded.tokenizer.encode(words, special=True, bos=True)
    pieces = list(compare.windows(ids, context))
    if not pieces:
        raise UsageError("The text is too short to compare: it needs two tokens.", code="input-empty")
    begin = _begin(loaded, words, context)
    _warm_up(loaded, pieces[0], begin)
    sums, seconds = compare.Sums(reference), 0.0
    for number, piece in enumerate(pieces):
        started = time.perf_counter()
        logits = np.asarray(loaded.logits(piece), np.float32)
        seconds += time.perf_counter() - started
        if first:
            reference.keep(number, logits)
        sums.add(number, piece, logits)
    reading = sums.reading()
    answer = loaded.generate(begin, raw=True, max_tokens=_WRITTEN, temperature=0.0)
    for _ in answer:
        pass
    card = loaded.card  # the tensors of a network of transformers have no roles
    errors[format] = compare.layer_errors(card, format, loaded.devices[0]) if isinstance(card, ModelCard) else {}
    finite = [value for value in errors[format].values() if math.isfinite(value)]
    return {
        "format": format,
        "weights": sum(placement.memory.weights for placement in loaded.plan.placements),
        "KL": reading.divergence,
        "perplexity": reading.perplexity,
        "agreement": reading.agreement,
        "worst layer dB": min(finite, default=math.inf if errors[format] else math.nan),
        "tokens/s": float(answer.result["decode_tokens_per_second"] or math.nan),
        "prompt/s": sum(map(len, pieces)) / seconds if seconds else math.nan,
    }


def _warm_up(loaded: Model, piece: Sequence[int], begin: str) -> None:
    """Read and write a little: what is imported, compiled and allocated for the first time is no format's speed."""
    loaded.logits(piece)
    for _ in loaded.generate(begin, raw=True, max_tokens=2, temperature=0.0):
        pass


def _begin(loaded: Model, words: str, context: int) -> str:
    """Return the begin of a text that is continued: at most half of the context, which some tokenizers need for a few
    words."""
    begin = words[:200]
    while len(begin) > 1 and len(loaded.tokenizer.encode(begin, special=True, bos=True)) > context // 2:
        begin = begin[: len(begin) // 2]
    return begin
