"""The page on the catalogue is what the code prints from the rows."""

import json
from pathlib import Path

from rung.cli.views import catalogue_page
from rung.hardware import catalog

PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"


def test_the_page_is_what_the_code_prints(rung):
    assert PAGE.read_text(encoding="utf-8") == catalogue_page.page(), (
        "rung devices --catalog --sources > docs/catalogue.md"
    )
    assert rung("devices", "--catalog", "--sources").out == catalogue_page.page()


def test_every_row_that_nobody_has_checked_is_named(rung):
    text = catalogue_page.page()
    listed = {product["name"] for product in json.loads(rung("devices", "--catalog", "unsure", "--json").out)}
    assert listed == {product.name for product in catalog.products() if product.status == "unsure"}
    assert all(f"| {row.key} |" in text for row in catalog.architectures().values() if row.status == "unsure")
