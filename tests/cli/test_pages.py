"""Pages of ``compare`` and ``explain`` have the frame of ``check``; answers print what the commands print."""

from __future__ import annotations

import html
import json
import math
import re

import pytest

import rung as library
from rung.cli import comparing
from tests.splats.browser import CHROMIUM, Browser

BF16 = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"


def read(path):
    return html.unescape(path.read_text(encoding="utf-8"))


def test_the_page_of_an_explanation_says_what_the_command_does(rung, tmp_path):
    page = tmp_path / "page.html"
    said = rung("explain", BF16, "--device", "p2200", "--html", str(page))
    text = read(page)
    assert said.code == 0
    assert "This GPU cannot multiply bfloat16 matrices." in text
    found = json.loads(rung("explain", BF16, "--device", "p2200", "--json").out)
    first = {fix["command"]: fix["text"] for fix in reversed(found["fixes"][:3])}  # each command stands there once
    assert len(first) > 1
    assert all(fix in text for fix in first.values())
    assert all(item["fact"] in text for item in found["evidence"])
    assert "Quadro P2200" in text
    assert f"rung {library.__version__}" in text
    assert not re.search(r"<script|<link|<img", text)


def test_the_page_of_what_nobody_knows_has_no_fixes(rung, tmp_path):
    page = tmp_path / "page.html"
    assert rung("explain", "my cat sleeps", "--no-environment", "--html", str(page)).code == 3
    assert "I do not know this one" in read(page)
    assert "What to do" not in read(page)


def test_a_page_of_an_explanation_escapes_the_log(rung, tmp_path):
    page = tmp_path / "page.html"
    rung("explain", f"<script>alert(1)</script> {BF16}", "--device", "p2200", "--html", str(page))
    assert "<script" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [("--list",), ("--redact", BF16)])
def test_a_page_of_something_else_is_refused(rung, tmp_path, arguments):
    said = rung("explain", *arguments, "--html", str(tmp_path / "page.html"))
    assert said.code == 2
    assert "--html" in said.err


def test_the_page_of_a_comparison_has_its_table_and_a_sentence(rung, model, tmp_path, monkeypatch):
    page, none = tmp_path / "page.html", math.inf
    rows = [
        {"format": "stored", "weights": 92 * 2**20, "KL": 0.0, "perplexity": 16.5, "worst layer dB": none},
        {"format": "q8_0", "weights": 60 * 2**20, "KL": 0.58, "perplexity": 25.1, "worst layer dB": 44.9},
    ]
    monkeypatch.setattr(comparing, "language", lambda *_: rows)
    said = rung("compare", model, "--format", "q8_0", "--html", str(page))
    assert said.code == 0
    text = read(page)
    cells = re.findall(r'<td class="number">(.*?)</td>', text)
    assert cells == [word for line in said.out.splitlines()[1:] for word in re.split(r"  +", line.strip())]
    assert "against stored: q8_0: KL 0.58, 60 MB instead of 92 MB." in text
    assert f"rung compare {model} --format q8_0" in text


def test_what_is_printed_of_an_answer_is_what_the_command_prints(rung):
    options = {"device": "p2200", "format": "q8_0"}
    said = rung("check", "gemma-2b", "--device", "p2200", "--format", "q8_0").out
    assert str(library.check("gemma-2b", **options)) + "\n" == said


def test_values_print_in_a_few_lines_and_their_repr_in_one():
    answer, device = library.check("gemma-2b", device="p2200"), library.device("p2200")
    plan = library.plan("demo", device="p2200")
    assert str(device).splitlines()[1] == "multiplies f32 native, f16 and bf16 emulated, int8 not known"
    assert str(plan).splitlines()[0].startswith("demo.gguf · ")
    for value in (answer, device, plan):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)
        assert len(str(value)) < 4000
        assert value._repr_html_().startswith("<p><b>")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: how wide pages are was not measured")
def test_no_page_is_wider_than_a_telephone(rung, model, tmp_path, monkeypatch):
    """Reasons and tables fold; what a comparison has more of scrolls in its own frame, and shows three columns."""
    rows = [
        {"format": "stored", "weights": 92 * 2**20, "KL": 0.0, "perplexity": 16.5, "agreement": 1.0, "prompt/s": 1.0}
    ]
    monkeypatch.setattr(comparing, "language", lambda *_: rows)
    cards = ("--device", "p2200", "--device", "rtx 2080 ti", "--device", "3090+3060")
    commands = {
        "check": ("llama 3.1 8b", *cards),
        "explain": (BF16, "--device", "p2200"),
        "compare": (model, "--format", "q8_0"),
    }
    for command, words in commands.items():
        rung(command, *words, "--html", str(tmp_path / f"{command}.html"))
    with Browser(tmp_path, 420, 900) as browser:
        for command in commands:
            address = (tmp_path / f"{command}.html").as_uri()
            browser.open(address)
            browser.wait(f"location.href == '{address}' && document.readyState == 'complete'")
            assert browser.value("document.documentElement.scrollWidth") <= 420, command
            shown = "[...document.querySelectorAll('thead tr')].map(row => row.children[2])"
            assert browser.value(f"{shown}.every(cell => !cell || cell.getBoundingClientRect().right <= 420)"), command
