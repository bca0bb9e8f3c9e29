"""Conversations on the page: what is sent, what appears, and what is still there later."""

from __future__ import annotations

import json
import time

import pytest

from rung.server.errors import ApiError

TURNS = "[...document.querySelectorAll('.said, .answer .prose')].map((one) => one.innerText)"


def test_an_answer_appears_while_it_is_written_and_then_what_it_cost(tab, fake):
    fake.said["tale"], fake.is_paused = ["Once ", "upon a ", "time"], True
    tab.say("tale please")
    tab.wait_text("Once upon a time")
    assert tab.js("document.querySelector('main').getAttribute('aria-busy')") == "true"
    assert "tokens/s" not in tab.text()
    fake.is_paused = False
    assert tab.answer() == "Once upon a time"
    tab.wait_text("58 tokens · 24.3 tokens/s · first after 0.")
    assert tab.js("document.title") == "tale please – rung"
    assert "cuda:0 linear: triton.fused → numba.row. It was lost." in tab.text()
    tab.click(tab.js("document.querySelector('.cost summary').innerText"))
    facts = tab.js("Object.fromEntries([...document.querySelectorAll('.cost dt')]"
                   ".map((one) => [one.innerText, one.nextSibling.innerText]))")  # fmt: skip
    assert facts == {
        "Model": "demo",
        "Runs on": "cpu · q4_0",
        "Memory": "1.5 GB (predicted 2.0 GB)",
        "Speed": "24.3 tokens/s (predicted 20.0 tokens/s)",
        "Prompt": "9 tokens, of which 4 were known",
    }


def test_a_second_message_goes_with_what_was_said(tab, fake):
    tab.say("one")
    tab.answer()
    tab.say("two")
    assert tab.answer() == "3 messages, the last one: two"
    assert fake.bodies[1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1 messages, the last one: one"},
        {"role": "user", "content": "two"},
    ]
    assert fake.bodies[1]["model"] == "demo"
    assert set(fake.bodies[1]) == {"messages", "model", "stream", "stream_options"}


@pytest.mark.parametrize("how", ["key", "button"])
def test_stop_ends_the_answer_on_the_server_and_keeps_its_beginning(tab, fake, how):
    fake.said["long"], fake.is_paused = ["The beginning"], True
    tab.say("long")
    tab.wait_text("The beginning")
    tab.press("Escape") if how == "key" else tab.click("Stop")
    tab.wait_text("Stopped.")
    until = time.monotonic() + 5
    while not fake.cancelled:
        assert time.monotonic() < until
        time.sleep(0.01)
    fake.is_paused = False
    tab.say("and then")
    tab.answer()
    assert fake.bodies[1]["messages"][1] == {"role": "assistant", "content": "The beginning"}
    assert [each["content"] for each in fake.bodies[1]["messages"]] == ["long", "The beginning", "and then"]


def test_an_edit_is_a_branch_and_so_is_another_answer(tab, fake):
    tab.say("first")
    tab.answer()
    tab.say("second")
    tab.answer()
    tab.click("Edit", 0)
    tab.press("Ctrl+a")
    tab.type("changed")
    tab.press("Enter")
    assert tab.answer() == "1 messages, the last one: changed"
    assert tab.js(TURNS) == ["changed", "1 messages, the last one: changed"]
    assert fake.bodies[2]["messages"] == [{"role": "user", "content": "changed"}]
    tab.click("Answer again")
    tab.wait_text("2/2\n")
    tab.answer()
    assert fake.bodies[3]["messages"] == fake.bodies[2]["messages"]
    tab.click("Version before", 0)
    first = ["first", "1 messages, the last one: first", "second", "3 messages, the last one: second"]
    tab.wait(f"JSON.stringify({TURNS}) === {json.dumps(json.dumps(first, separators=(',', ':')))}")
    tab.wait("document.querySelector('[role=status].unseen').innerText === 'Version 1 of 2'")
    time.sleep(0.2)
    tab.reload()
    tab.wait_text("second")
    assert tab.js(TURNS) == first
    tab.click("Version after", 0)
    tab.wait_text("changed")
    assert tab.js("document.querySelectorAll('.answer [aria-label=Versions]').length") == 1


def test_conversations_outlive_the_page_and_can_be_named_found_and_deleted(tab, fake):
    for text in ("About ladders", "About bridges and rivers"):
        tab.press("Ctrl+Shift+O")
        tab.say(text)
        tab.answer()
    tab.reload()
    titles = "[...document.querySelectorAll('.rows a')].map((one) => one.innerText.trim())"
    tab.wait(f"{titles}.length === 2")
    assert tab.js(titles) == ["About bridges and rivers", "About ladders"]
    assert tab.js(TURNS)[0] == "About bridges and rivers"
    tab.click("Rename")
    tab.press("Ctrl+a")
    tab.type("Water")
    tab.press("Enter")
    tab.wait(f"{titles}[0] === 'Water'")
    tab.press("Ctrl+K")
    tab.wait("document.activeElement.id === 'search'")
    tab.type("RIVERS")
    tab.wait(f"{titles}.length === 1 && {titles}[0] === 'Water'")
    tab.press("Escape")
    tab.wait(f"{titles}.length === 2")
    tab.click("Delete")
    tab.wait(f"{titles}.length === 1 && {TURNS}.length === 0")
    tab.click("Undo")
    tab.wait(f"{titles}.length === 2 && {TURNS}.length === 2")
    tab.click("Delete")
    tab.wait(f"{titles}.length === 1")
    tab.reload()
    tab.wait(f"{titles}.length === 1 && {titles}[0] === 'About ladders'")
    tab.click("About ladders")
    tab.wait(f"{TURNS}[0] === 'About ladders'")
    tab.js("history.back()")
    tab.wait(f"{TURNS}.length === 0")


def test_another_tab_sees_what_is_said(browser, tab, fake):
    other = browser.another_tab(tab.context, fake.url)
    tab.say("here")
    tab.answer()
    other.click("here")
    other.wait_text("1 messages, the last one: here")
    tab.say("and again")
    tab.answer()
    other.wait_text("3 messages, the last one: and again")
    assert other.problems == []


def test_a_page_that_is_closed_keeps_what_was_written_and_says_that_it_is_cut(tab, fake):
    fake.said["long"], fake.is_paused, fake.pause = ["Kept ", "until ", "here ", "and ", "on."], True, 0.4
    tab.say("long")
    tab.wait_text("on.")
    tab.reload()
    tab.wait_text("The page was closed before the end.")
    assert tab.answer().startswith("Kept until here")


def test_an_answer_goes_on_while_another_conversation_is_read(tab, fake):
    fake.said["tale"], fake.is_paused = ["Once upon a time"], True
    tab.say("tale")
    tab.wait_text("Once upon")
    tab.press("Ctrl+Shift+O")
    tab.wait("document.querySelectorAll('.turn').length === 0")
    tab.wait("document.querySelectorAll('.rows .busy').length === 1")
    tab.type("unsent")
    fake.is_paused = False
    tab.wait("document.querySelectorAll('.rows .busy').length === 0")
    tab.click("tale")
    tab.wait_text("58 tokens")
    assert tab.answer() == "Once upon a time"


def test_what_the_server_refuses_is_said_with_what_to_do(tab, fake):
    fake.refusals["big"] = ApiError(400, "9 tokens and 512 there are.", code="context_length_exceeded")
    fake.refusals["busy"] = ApiError(503, "64 answers wait.", code="queue_full", retry_after=7)
    tab.say("big")
    tab.wait_text("9 tokens and 512 there are. Begin a new conversation, send less,")
    tab.wait("document.querySelector('[role=status].unseen').innerText.includes('9 tokens and 512')")
    del fake.refusals["big"]
    tab.click("Try again")
    assert tab.answer() == "1 messages, the last one: big"
    assert "9 tokens and 512" not in tab.js("document.querySelector('.thread').innerText")
    tab.say("busy")
    tab.wait_text("64 answers wait. Try again in 7 s.")
    tab.expects_problems = True


def test_an_answer_that_breaks_off_keeps_what_there_is(tab, fake):
    fake.said["broken"], fake.said["failing"] = ["Half of it", "BREAK"], ["A part", "FAIL"]
    fake.pause = 0.1
    tab.say("broken")
    tab.wait_text("The answer broke off: the connection to the server was lost. Try again.")
    assert tab.answer() == "Half of it"
    tab.say("failing")
    tab.wait_text("The engine failed. The server's log says why. Try again.")
    assert tab.answer() == "A part"
    tab.expects_problems = True


def test_a_place_in_the_queue_is_shown(tab, fake):
    fake.said["wait"], fake.pause = [": ping", ": queue position 3", ": queue position 1", "Done"], 0.4
    tab.say("wait")
    tab.wait_text("Reading")
    tab.wait_text("3 answers before yours")
    tab.wait_text("1 answer before yours")
    assert tab.answer() == "Done"


def test_a_server_that_is_gone_is_said_and_found_again(tab, fake, browser):
    fake.ready = False
    tab.reload()
    tab.wait_text("The model is loading.")
    fake.ready = True
    tab.wait("!document.querySelector('.banner')")
    tab.wait_text("context 512")
    fake.stop()
    tab.say("hello?")
    tab.wait_text("The server does not answer. Is “rung serve” still running?")
    tab.expects_problems = True


def test_a_key_is_asked_for_and_remembered_only_if_wanted(tab, fake):
    fake.need_keys("sk-right")
    tab.say("hello")
    tab.wait_text("The server asks for a key")
    tab.type("sk-wrong")
    tab.press("Enter")
    tab.wait("!document.querySelector('#key') || document.querySelector('#key').value === ''")
    tab.wait_text("The server asks for a key")
    tab.type("sk-right")
    tab.press("Enter")
    tab.wait_text("58 tokens")
    assert tab.answer() == "1 messages, the last one: hello"
    assert tab.js("localStorage.getItem('rung.key')") is None
    tab.reload()
    tab.say("again")
    assert tab.answer() == "3 messages, the last one: again"
    tab.expects_problems = True


def test_settings_go_with_the_next_answer(tab, fake):
    tab.press("Ctrl+,")
    for name, value in {"Temperature": "0.5", "Top-k": "40", "Min-p": "7", "Seed": "1.5", "Stop at": "A\nB"}.items():
        tab.click(name)
        tab.type(value)
    assert "From 0 to 1." in tab.text()
    assert "A whole number." in tab.text()
    tab.click("System prompt")
    tab.type("Be brief.")
    tab.press("Escape")
    tab.say("hello")
    tab.answer()
    body = fake.bodies[0]
    assert {name: body.get(name) for name in ("temperature", "top_k", "stop")} == {
        "temperature": 0.5,
        "top_k": 40,
        "stop": ["A", "B"],
    }
    assert not {"min_p", "seed"} & set(body)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    tab.reload()
    tab.press("Ctrl+Shift+O")
    tab.say("another")
    tab.answer()
    assert fake.bodies[1]["temperature"] == 0.5
    assert [each["content"] for each in fake.bodies[1]["messages"]] == ["Be brief.", "another"]
    tab.press("Ctrl+,")
    tab.click("Empty all fields")
    tab.press("Escape")
    tab.say("third")
    tab.answer()
    assert not {"temperature", "top_k", "stop"} & set(fake.bodies[2])


def test_the_model_that_is_chosen_answers(tab, fake):
    fake.models = ["demo", "other"]
    tab.reload()
    tab.wait("document.querySelector('select.model')?.value === 'demo'")
    tab.js("document.querySelector('select.model').focus()")
    tab.press("ArrowDown")
    tab.say("hello")
    tab.answer()
    assert fake.bodies[0]["model"] == "other"
    tab.reload()
    tab.wait("document.querySelector('select.model')?.value === 'other'")


def test_files_of_text_are_sent_and_others_refused(tab, fake, tmp_path):
    (tmp_path / "notes.md").write_text("Fenced:\n```py\n1\n```\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    (tmp_path / "large.txt").write_bytes(b"a" * (2**20 + 1))
    node = tab.call("Runtime.evaluate", expression="document.querySelector('input[type=file]')")["result"]["objectId"]
    for name, sentence in (
        ("notes.md", "notes.md"),
        ("picture.png", "picture.png is no text file."),
        ("large.txt", "large.txt has 1 MB; at most 1 MB can be attached."),
    ):
        tab.call("DOM.setFileInputFiles", files=[str(tmp_path / name)], objectId=node)
        tab.wait_text(sentence)
    tab.say("What is in it?")
    tab.answer()
    (message,) = fake.bodies[0]["messages"]
    assert message["content"] == "notes.md:\n````\nFenced:\n```py\n1\n```\n````\n\nWhat is in it?"
    tab.reload()
    tab.wait_text("notes.md")
    tab.say("Again")
    tab.answer()
    assert fake.bodies[1]["messages"][0] == message


#: Has the page see files as a browser hands them over: dragged over it and let go, or pasted into the message.
HAND_OVER = """((kind, files) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name, {type: "text/plain"}));
  const target = kind === "paste" ? document.getElementById("message") : document.querySelector("main");
  const events = kind === "paste"
    ? [new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})]
    : ["dragover", "drop"].map((name) => new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
  return events.map((event) => !target.dispatchEvent(event));
})"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_files_of_text_are_attached_by_hand(tab, fake, kind):
    """The browser is kept from what it would do with them: it would leave the page, or paste a name."""
    files = [["a.txt", "one"], ["b.py", "two = 2"], ["c.bin", "\0"]]
    prevented = tab.js(f"{HAND_OVER}({json.dumps(kind)}, {json.dumps(files)})")
    assert prevented == [True] * (2 if kind == "drop" else 1)
    tab.wait_text("a.txt")
    tab.wait_text("b.py")
    tab.wait_text("c.bin is no text file.")
    assert tab.js("document.querySelector('form.composer.over')") is None
    tab.say("Which?")
    tab.answer()
    (message,) = fake.bodies[0]["messages"]
    assert message["content"] == "a.txt:\n```\none\n```\n\nb.py:\n```\ntwo = 2\n```\n\nWhich?"
    words = tab.js(f"{HAND_OVER}({json.dumps(kind)}, [])")
    assert words == [False] * len(prevented), "what has no files is the browser's"


def test_conversations_are_exported_and_added_again(tab, fake, tmp_path):
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), browserContextId=tab.context)
    tab.say("Keep **this**")
    tab.answer()
    tab.click("Export as Markdown")
    markdown = downloaded(tmp_path / "Keep-this.md")
    assert (
        markdown == "# Keep **this**\n\n## You\n\nKeep **this**\n\n## demo\n\n1 messages, the last one: Keep **this**\n"
    )
    tab.press("Ctrl+,")
    tab.click("Export all conversations")
    document = json.loads(downloaded(tmp_path / "rung-conversations.json"))
    assert len(document["conversations"]) == 1
    bad = tmp_path / "bad.json"
    document["conversations"].append({"title": "evil", "system": "", "shown": "gone", "messages": {}})
    bad.write_text(json.dumps(document))
    node = tab.call("Runtime.evaluate", expression="document.querySelector('dialog input[type=file]')")
    for path, sentence in ((tmp_path / "Keep-this.md", "has no conversations"), (bad, "One conversation was added.")):
        tab.call("DOM.setFileInputFiles", files=[str(path)], objectId=node["result"]["objectId"])
        tab.wait_text(sentence)
    tab.press("Escape")
    tab.wait("document.querySelectorAll('.rows a').length === 2")
    tab.click("Keep **this**", 0)
    tab.wait(f"{TURNS}.length === 2")


def downloaded(path):
    until = time.monotonic() + 10
    while not path.exists() or not path.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    return path.read_text()
