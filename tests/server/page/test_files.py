"""The page's files as a browser gets them, and the libraries among them."""

from __future__ import annotations

import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rung.server

FOLDER = Path(rung.server.__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
SERVED = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
#: What the page may have in sum, in bytes.
MOST = 150_000


def address(path: Path) -> str:
    return "/" if path.name == "index.html" else f"/page/{path.relative_to(FOLDER)}"


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.name)
def test_a_file_comes_as_it_is_with_headers_that_keep_a_browser_to_it(server, path):
    status, content, headers = server.call(address(path))
    assert (status, content) == (200, path.read_text(encoding="utf-8"))
    assert headers.get_content_type() == TYPES[path.suffix]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert not {word for rule in policy for word in rule.split()} & {"'unsafe-inline'", "'unsafe-eval'", "*", "data:"}
    etag = headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        again, nothing, same = server.call(address(path), headers={"if-none-match": known})
        assert (again, nothing, same["etag"]) == (304, "", etag)
    assert server.call(address(path), headers={"if-none-match": '"other"'})[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/index.html",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/page/vendor/../../app.py",
        "/page/vendor/LICENSE.htm",
        "//page/main.js",
        "/page/main.js/",
        "/page/main.js%00",
    ],
)
def test_nothing_else_is_served(server, path):
    status, document, _ = server.call(path)
    assert (status, document["error"]["code"]) == (404, "path_unknown")


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in SERVED) <= MOST


def test_libraries_are_as_they_were_published():
    rows = re.findall(r"^\| `(\S+)` \| .+? \| `([0-9a-f]{64})` \|$", (FOLDER / "vendor/README.md").read_text(), re.M)
    assert {name for name, _ in rows} == {path.name for path in (FOLDER / "vendor").iterdir()} - {"README.md"}
    for name, digest in rows:
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest, name


class _Inline(HTMLParser):
    """Parser of what a policy without 'unsafe-inline' refuses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [name for name in names if name == "style" or name.startswith("on")]


def test_nothing_is_inline_and_nothing_is_elsewhere():
    assert _Inline('<p onclick="x" style="y"></p><script>z</script>').found == ["onclick", "style", "script"]
    assert _Inline((FOLDER / "index.html").read_text()).found == []
    own = [path for path in SERVED if path.parent.name != "vendor"]
    text = "".join(path.read_text() for path in own).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"https?://|//[a-z]+\.[a-z]+|innerHTML|insertAdjacentHTML|document\.write|\beval\(", text) == []


def test_a_link_of_another_site_leads_to_the_page_and_nothing_else_of_it_does(server):
    cross = {"sec-fetch-site": "cross-site"}
    assert server.call("/", headers={**cross, "sec-fetch-dest": "document"})[0] == 200
    for elsewhere in ("iframe", "script", "image", "empty"):
        assert server.call("/", headers={**cross, "sec-fetch-dest": elsewhere})[0] == 403
    form = {**cross, "sec-fetch-dest": "document", "origin": "https://evil.example"}
    assert server.call("/v1/chat/completions", b"{}", form)[0] == 403
