"""docs/ as a site: each page is in the navigation, each link leads somewhere, and no page names a path of a machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.support.rows import each_row

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
NAVIGATION = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]


def test_the_navigation_has_each_page_once() -> None:
    listed = re.findall(r"[\w/-]+\.md", NAVIGATION)
    assert len(listed) == len(set(listed))
    assert set(listed) == {str(page.relative_to(ROOT / "docs")) for page in PAGES}


@each_row("page", [*PAGES, *OTHERS], lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_no_path_is_of_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://|mailto:|#)([^)\s#]+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert re.findall(r"/(?:work|root)/\S*|/home/(?!me\b|you\b|user\b)\w+/\S*", text) == []


def test_what_builds_the_site_is_an_extra_of_its_own() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    names = {re.split(r"[\[><=]", requirement)[0] for requirement in extras["docs"]}
    assert names == {"mkdocs-material", "mkdocstrings"}
    assert names <= pinned
    assert not names & {re.split(r"[\[><=]", each)[0] for extra in ("run", "test", "dev") for each in extras[extra]}


def test_how_to_pages_have_steps_a_proof_and_files_that_are_there() -> None:
    for page in sorted((ROOT / "docs/howto").glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^\d+\. ", text, re.MULTILINE)) >= 3, page
        assert "Prove it" in text, page
        for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|toml|table))`", text):
            assert (ROOT / path).is_file() or (ROOT / "src/rung" / path).is_file(), f"{page.name}: {path}"
        for path in re.findall(r"tests/[\w/]+(?:\.py)?(?![\w.]|<)", text.replace("_<", "<")):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
