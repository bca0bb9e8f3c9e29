"""Text of models, people and files that wants to be more than text, and text that is hard to read."""

from __future__ import annotations

import json

import pytest
from markdown_it import MarkdownIt

CORPUS = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<svg onload=window.hit=1><animate onbegin=window.hit=1>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "<a href='javascript:window.hit = 1'>press</a> [press](javascript:window.hit=1) [p](JaVaScRiPt:window.hit=1)",
    "[press](java&#x0A;script:window.hit=1) [press](&#106;avascript:window.hit=1) <javascript:window.hit=1>",
    "[press](data:text/html;base64,PHNjcmlwdD5wYXJlbnQuaGl0PTE8L3NjcmlwdD4=) [p](vbscript:x) [p](//evil.example/)",
    "![seen](https://evil.example/a.png) ![](//evil.example/b.png) <img src='https://evil.example/c.png'>",
    "<style>@import 'https://evil.example/d.css'; body { background: url(https://evil.example/e.png) }</style>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=1></style></mglyph></table></mtext></math>",
    "<form action='https://evil.example/'><input name=x><button>Send</button></form><base href='https://evil.example/'>",
    "<noscript><p title='</noscript><img src=x onerror=window.hit=1>'>",
    '```"><img/src=x onerror=window.hit=1>\n<script>window.hit = 1</script>\n```',
    "| <img src=x onerror=window.hit=1> | b |\n|---|---|\n| <script>window.hit=1</script> | `<b>` |",
    "&lt;script&gt;window.hit = 1&lt;/script&gt; &#60;img src=x onerror=window.hit=1&#62; &#99999999; &#xd800;",
    "- [x] <input onfocus=window.hit=1 autofocus>\n\n<details open ontoggle=window.hit=1>",
    "<div id=message><input id=search name=body>__proto__ constructor {{7*7}} ${window.hit = 1}",
]


def test_hostile_text_stays_text_wherever_it_stands(tab, fake):
    for number, text in enumerate(CORPUS):
        fake.said[str(number)] = [text[:7], text[7:]]
    fake.models = ["demo", CORPUS[1], CORPUS[0]]
    tab.reload()
    tab.wait("document.querySelectorAll('.model option').length === 3")
    for number, text in enumerate(CORPUS):
        tab.say(f"{number} {text}")
        tab.answer()
        assert text.replace("\n", " ") in tab.js(
            "document.querySelector('.turn.user:nth-last-child(2)').innerText"
        ).replace("\n", " ")
    tab.press("Ctrl+Shift+O")
    tab.say(CORPUS[1])
    tab.answer()
    assert CORPUS[1] in tab.js("document.querySelector('.rows').innerText")
    tab.js("history.go(-2)")
    tab.wait(f"document.querySelectorAll('.turn').length === {2 * len(CORPUS)}")
    found = tab.js("[...new Set([...document.querySelectorAll('.prose *')].map((one) => one.localName))]")
    assert not set(found) & {
        "script",
        "img",
        "svg",
        "iframe",
        "style",
        "math",
        "form",
        "input",
        "base",
        "details",
        "object",
    }
    attributes = tab.js(
        "[...new Set([...document.querySelectorAll('.prose *')].flatMap((one) => one.getAttributeNames()))]"
    )
    assert set(attributes) <= {
        *("align", "aria-label", "aria-live", "class", "href", "rel", "role", "start", "tabindex", "target", "type")
    }
    links = tab.js("[...document.querySelectorAll('.prose a')].map((one) => [one.protocol, one.rel, one.target])")
    assert len(links) >= 1
    assert {tuple(link) for link in links} == {("https:", "noopener noreferrer", "_blank")}
    for button in range(tab.js("document.querySelectorAll('.prose button').length")):
        tab.js(f"document.querySelectorAll('.prose button')[{button}].click()")
    assert tab.js("window.hit ?? null") is None
    assert "<script>window.hit = 1</script>" in tab.js("document.querySelector('.thread').innerText")


def test_no_text_can_become_html_or_code_on_this_page(tab, fake):
    refused = """(async () => {
      const tried = [() => (document.body.innerHTML = "<b>x</b>"), () => eval("1"), () => new Function("return 1")()];
      return tried.map((one) => { try { one(); return "done"; } catch (error) { return "refused"; } });
    })()"""
    assert tab.js(refused) == ["refused"] * 3
    tab.expects_problems = True


SAMPLE = """
# Title
Some *emphasis*, **strong**, ~~gone~~ and `code <b>` with [a link](https://fine.example/?a=1&b=2).
A second line  \nand a third &amp; last &lt;b&gt;

1. one
2. two
   - inner
   - other

> quoted
> **text**

```python
if a < b and c:
    print("&amp;")
```

    indented

| left | right |
|:-----|------:|
| 1    | `2`   |

---

Seen by [reference].

[reference]: https://fine.example/later
"""


def shape(html: str, names: str) -> str:
    """An expression: names of elements and texts of a piece of HTML, one after the other."""
    return f"""(() => {{
      const walk = (node) => node.nodeType === 3 ? [node.data.trim()] :
        node.localName === "button" ? [] : [
          ...({names}.includes(node.localName) ? [node.localName] : []), ...[...node.childNodes].flatMap(walk)];
      return walk({html}).filter(Boolean);
    }})()"""


def test_markdown_means_what_it_means_elsewhere(browser, tab, fake):
    """Beside another implementation, in Python, whose HTML the browser reads on a page without a policy."""
    fake.said["sample"] = [SAMPLE[start : start + 5] for start in range(0, len(SAMPLE), 5)]
    tab.say("sample")
    tab.answer()
    names = json.dumps(
        [
            "p",
            "em",
            "strong",
            "del",
            "s",
            "code",
            "a",
            "ol",
            "ul",
            "li",
            "blockquote",
            "pre",
            "table",
            "th",
            "td",
            "hr",
            "br",
        ]
    )
    ours = tab.js(shape("document.querySelector('.prose')", names))
    parser = MarkdownIt("commonmark", {"breaks": True}).enable(["table", "strikethrough"])
    other = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
    session = browser.call("Target.attachToTarget", {"targetId": other, "flatten": True})["sessionId"]
    read = shape(f"new DOMParser().parseFromString({json.dumps(parser.render(SAMPLE))}, 'text/html').body", names)
    theirs = browser.call("Runtime.evaluate", {"expression": read, "returnByValue": True}, session)["result"]["value"]
    language = ours.index("python")  # the label of a block of code
    assert ours[:language] + ours[language + 1 :] == ["del" if each == "s" else each for each in theirs]


def test_what_is_shown_while_it_is_written_is_what_is_shown_at_the_end(tab, fake):
    text = SAMPLE.replace("[reference]", "reference")  # links may be defined later
    fake.said["sample"], fake.is_paused = [text[start : start + 3] for start in range(0, len(text), 3)], True
    tab.say("sample")
    tab.wait_text("Seen by reference")
    tab.wait_text("https://fine.example/later")
    before = tab.js("document.querySelector('.prose').innerHTML")
    fake.is_paused = False
    tab.answer()
    assert tab.js("document.querySelector('.prose').innerHTML") == before


@pytest.mark.parametrize("text", [">" * 20000, "- " * 2000, "[" * 5000, "*a_ " * 5000, "`" * 5000, "a" * 200_000])
def test_text_that_is_hard_to_read_is_shown(tab, fake, text):
    fake.said["hard"] = [text]
    tab.say("hard")
    tab.answer()
    assert len(tab.js("document.querySelector('.answer').textContent")) > 20
    tab.say("and on")
    assert tab.answer() == "3 messages, the last one: and on"
