"""The page on the catalog is what the code prints from the rows."""

import json
from pathlib import Path

from rung.cli.views.pages.catalog import page
from rung.hardware import catalog

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"


def test_the_page_is_what_the_code_prints(rung):
    assert PAGE.read_text(encoding="utf-8") == page(), "rung devices --catalog --sources > docs/catalog.md"
    assert rung("devices", "--catalog", "--sources").out == page()


def test_every_row_that_nobody_has_checked_is_named(rung):
    text = page()
    listed = {product["name"] for product in json.loads(rung("devices", "--catalog", "unsure", "--json").out)}
    assert listed == {product.name for product in catalog.products() if product.status == "unsure"}
    assert all(f"| {row.key} |" in text for row in catalog.architectures().values() if row.status == "unsure")
