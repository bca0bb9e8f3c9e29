"""The page for those with a keyboard only, a screen reader, a phone, weak eyes, or a dark room."""

from __future__ import annotations

import pytest

LONG = "\n\n".join(
    [
        "w" * 300,
        "```\n" + "code " * 200 + "\n```",
        "| " + " | ".join(f"column {n}" for n in range(30)) + " |\n|" + "---|" * 30,
        "`" + "c" * 300 + "`",
        "https://fine.example/" + "path/" * 60,
    ]
)
#: Pairs of a text and its contrast with what lies under it, of all that is shown (WCAG 2.2, relative luminance).
CONTRASTS = """(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [red, green, blue] = channels(color).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if ((channels(color)[3] ?? 1) > 0) return color;
    }
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) =>
    [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && one.checkVisibility()
    && !one.disabled && !one.closest(".unseen, .skip"));
  return texts.map((one) => {
    const [over, under] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a);
    return [one.textContent.trim().slice(0, 30), Math.round(100 * (over + 0.05) / (under + 0.05)) / 100];
  });
})()"""
#: What has no name, or shares its id.
NAMELESS = """(() => {
  const controls = [...document.querySelectorAll("button, a, input:not([hidden]), textarea, select, summary, dialog")];
  const name = (one) => one.getAttribute("aria-label") || one.labels?.[0]?.innerText || one.innerText.trim()
    || document.getElementById(one.getAttribute("aria-labelledby"))?.innerText;
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  return [...controls.filter((one) => !name(one)).map((one) => one.outerHTML),
    ...ids.filter((id, index) => ids.indexOf(id) !== index)];
})()"""


def fill(tab, fake) -> None:
    """Show all that the page can show at once."""
    fake.said["all"] = [
        "# Head\n\nText with `code`, [a link](https://fine.example/) and\n\n> a quote\n\n```py\n1\n```\n\n|a|\n|-|\n|b|"
    ]
    tab.say("all of it")
    tab.answer()
    tab.js("document.querySelector('.cost summary').click()")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("chosen", [False, True], ids=["system", "chosen"])
def test_all_text_stands_out_from_what_lies_under_it(browser, fake, dark, chosen):
    with browser.tab(fake.url, dark=dark != chosen) as tab:
        if chosen:
            tab.press("Ctrl+,")
            tab.click("Dark" if dark else "Light")
            tab.press("Escape")
        fill(tab, fake)
        found = tab.js(CONTRASTS)
        tab.press("Ctrl+,")
        tab.click("Top-p")
        tab.type("7")
        found += tab.js(CONTRASTS)
        ground = tab.js("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(", "))) < 200) == dark
        assert len(found) > 60
        assert [pair for pair in found if pair[1] < 4.5] == []


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_is_wider_than_the_page(browser, fake, width):
    with browser.tab(fake.url, width, 640) as tab:
        fake.said["long"] = [LONG]
        tab.say("long " + "m" * 300)
        tab.answer()
        tab.press("Ctrl+,")
        for scope in (
            "document.documentElement",
            "document.querySelector('dialog')",
            "document.querySelector('.scroll')",
        ):
            assert tab.js(f"{scope}.scrollWidth - {scope}.clientWidth") <= 0, scope
        tab.press("Escape")
        outside = (
            "[...document.querySelectorAll('.bar *, .composer *')].filter((one) => one.getBoundingClientRect().right > "
            f"{width} && one.checkVisibility()).length"
        )
        assert tab.js(outside) == 0


def test_on_a_phone_the_list_lies_over_the_text(browser, fake):
    with browser.tab(fake.url, 390, 800) as tab:
        tab.say("first")
        tab.answer()
        assert tab.js("document.querySelector('#list').inert") is True
        tab.click("Show conversations")
        tab.wait("document.activeElement.id === 'search'")
        tab.press("Escape")
        tab.wait("document.querySelector('#list').inert")
        tab.click("New conversation")
        tab.click("Show conversations")
        tab.click("first")
        tab.wait("document.querySelector('#list').inert")
        tab.wait_text("1 messages, the last one: first")


def test_everything_has_a_name_and_ids_are_unique(tab, fake):
    fill(tab, fake)
    assert tab.js(NAMELESS) == []
    tab.press("Ctrl+,")
    tab.wait("document.querySelector('dialog[open]') !== null")
    assert tab.js(NAMELESS) == []
    assert tab.js("document.documentElement.lang") == "en"
    assert tab.js("['main', 'nav', 'header.bar'].every((one) => document.querySelectorAll(one).length === 1)")
    tab.press("Escape")
    assert tab.js("[...document.querySelectorAll('[role=status].unseen')].map((one) => one.ariaLive)") == ["polite"]
    assert "Text with" in tab.js("document.querySelector('[role=status].unseen').innerText")


def test_the_keyboard_reaches_everything(tab, fake):
    assert tab.focus() == "Message"
    tab.type("line")
    tab.press("Shift+Enter")
    tab.type("another")
    assert tab.js("document.activeElement.value") == "line\nanother"
    assert fake.bodies == []
    tab.press("Enter")
    tab.answer()
    assert fake.bodies[0]["messages"][0]["content"] == "line\nanother"
    found = set()
    for _ in range(40):
        tab.press("Tab")
        found.add(tab.focus())
    names = {"Message", "Edit", "Copy", "Answer again", "Rename", "Delete", "Export as Markdown", "Settings (Ctrl+,)"}
    assert names <= found
    tab.press("Ctrl+/")
    tab.wait_text("a new line")
    tab.press("Escape")
    tab.wait("document.querySelector('dialog') === null")
    tab.js("document.querySelector('[aria-label=\"Settings (Ctrl+,)\"]').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('dialog[open]')?.contains(document.activeElement)")
    tab.press("Escape")
    tab.wait("document.querySelector('dialog') === null")
    assert tab.focus() == "Settings (Ctrl+,)"


def test_a_browser_that_keeps_nothing_still_talks_and_says_so(browser, fake):
    with browser.tab(fake.url) as tab:
        tab.call(
            "Page.addScriptToEvaluateOnNewDocument", source="IDBFactory.prototype.open = () => { throw Error('no') }"
        )
        tab.reload()
        tab.wait_text("This browser keeps nothing here")
        tab.say("hello")
        assert tab.answer() == "1 messages, the last one: hello"
        assert tab.problems == []
