"""The page of model names is made from the table, and what it says of names is so."""

from pathlib import Path

from rung.cli.views.pages import model_names
from rung.models.catalog import find

PAGE = Path(__file__).parents[2] / "docs" / "model-names.md"


def test_the_page_is_made_from_the_table():
    assert PAGE.read_text(encoding="utf-8") == model_names.page(), (
        "python -c \"from rung.cli.views.pages import model_names; model_names.write('docs/model-names.md')\""
    )


def test_the_examples_of_the_page():
    for typed in ("llama 3.1 8b", "Llama-3.1-8B-Instruct", "llama3.1:8b", "meta-llama/Llama-3.1-8B"):
        assert find(typed).name == "llama-3.1-8b"
    assert (find("qwen3:4b-q4_K_M").name, find("qwen3:4b-q4_K_M").format) == ("qwen3-4b", "q4_k_m")
    assert find("gemma").notes
