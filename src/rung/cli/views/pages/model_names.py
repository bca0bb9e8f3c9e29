"""The page of all models that are known by name, made from the table; a test holds that it is current.

python -c "from rung.cli.views.pages import model_names; model_names.write('docs/model-names.md')"
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rung.models.catalog.rows import KnownModel, known_models, sources

_HEAD = """# Model names

`rung check`, `rung plan` and `rung.check` take the names of {count} open language models, without a network and without
their weights. Case, spaces, dashes, dots and colons do not matter, nor do words like *instruct*, *it*, *chat*, *base*:

| typed | means |
|---|---|
| `"llama 3.1 8b"`, `Llama-3.1-8B-Instruct`, `llama3.1:8b`, `meta-llama/Llama-3.1-8B` | llama-3.1-8b |
| `qwen3:4b-q4_K_M` | qwen3-4b with `--format q4_k_m` |
| `"llama 3.1"`, `qwen3` | the usual size of the family, marked with * below, as programs like ollama take it |
| `llama`, `qwen` | the most downloaded family of that line, in its usual size |
| `8b` | a dense model of that size, made from the nearest known one |
| `"llama 8b"` | refused with exit code 2 and the names, since several fit alike |
| `lama-3.1-8b` | refused: Did you mean llama-3.1-8b? |

What was taken where a name leaves something open is said on stderr. A file or folder of that name wins, then `demo`,
then names of the hub. Where the hub is not reached, a name of it that the table knows is answered from the table.
`rung check --device CARD` without a model says which of them run there, best first. `rung run NAME` says which
repository holds the weights.

## Where the figures come from

The numbers that decide sizes (layers, widths, heads, experts, vocabulary) are those of the models' configurations, as
the sources below record them. For each row the number of weights that follows from them is within 0.5 % of the
published one, for {exact} of {count} it is equal; names and shapes of every tensor are those of the module that
transformers builds from the same configuration. For {files} rows the size of a published file is computed within 1 %.
Of models that see pictures or hear the language part counts, as in GGUF files. Gemma 3n and 4 are called by the weights
that are multiplied for a token (E2B: 2.3 of 4.6 billion); the rest is looked up, and takes memory all the same.

Doubts: licenses and context lengths are as remembered from the models' pages. Downloads are those of one month (May
2026) and missing where nobody recorded them; they decide order only. Mixtures of 4 bits of hybrids (Qwen3.5) come out
up to 6 % smaller than published files, whose makers store the layers with a state finer; 8 and 16 bits agree.
DeepSeek, GLM and Nemotron count without the layer that predicts a second token. Which layers of LFM2 2.6B and 24B
attend is as remembered; how many do follows from the count, and sizes from that. Files of Gemma 3n and 4 also hold
keys and values of layers that take those of others: up to 0.9 % that nothing reads.

"""


def page() -> str:
    """Return the page."""
    return "\n".join([_head(), *_families(), *_sources(), ""])


def write(path: str) -> None:
    """Write the page."""
    Path(path).write_text(page(), encoding="utf-8")


def _head() -> str:
    from rung.models.catalog import Match, outline_of

    models = known_models()
    exact = sum(outline_of(Match(model.name, model)).parameters == model.parameters for model in models)
    return _HEAD.format(count=len(models), exact=exact, files=sum(bool(model.files) for model in models))


def _families() -> Iterator[str]:
    yield "## The names\n"
    yield "| name | other names | parameters | made for | released | license | hub |"
    yield "|---|---|---|---|---|---|---|"
    for model in known_models():
        yield _row(model)


def _row(model: KnownModel) -> str:
    billions = model.parameters / 1e9
    size = f"{billions:.3g} B" if billions >= 1 else f"{1000 * billions:.0f} M"
    cells = (
        f"{model.name}{' *' if model.usual else ''}",
        ", ".join(model.aliases),
        size,
        model.purpose,
        model.released,
        model.license,
        model.weights,
    )
    return "| " + " | ".join(cells) + " |"


def _sources() -> Iterator[str]:
    yield "\n## Sources\n"
    yield "Each row of `src/rung/models/catalog/models.table` names its sources by these words.\n"
    for name, text in sources().items():
        yield f"- **{name}**: {text}"
