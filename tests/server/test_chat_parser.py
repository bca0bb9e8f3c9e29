"""Test the parser of answers: reasoning, text and calls, however the text is cut."""

from __future__ import annotations

import json

import pytest

from rung.server.api.chat_parser import ChatParser, FunctionCall, Reasoning, Text, parse
from rung.server.api.tools import Function, Tool

TOOLS = [Tool("function", Function(name="move")), Tool("function", Function(name="stop"))]
CALL = '{"name": "move", "arguments": {"x": 1}}'
STOP = '{"name": "stop", "arguments": {}}'


def found(text: str, cut: int = 0, tools=TOOLS, **how):
    """Parts without the ids of calls; the text comes in pieces of ``cut`` characters, or at once."""
    parser = ChatParser(tools, **how)
    if not cut:
        return [_plain(part) for part in parse(parser, text)]
    parts = [part for start in range(0, len(text), cut) for part in parser.push(text[start : start + cut])]
    joined: list = []
    for part in map(_plain, [*parts, *parser.finish()]):
        if joined and part[0] == joined[-1][0] != "call":
            joined[-1] = (part[0], joined[-1][1] + part[1])
        else:
            joined.append(part)
    return joined


def _plain(part):
    if isinstance(part, FunctionCall):
        return "call", part.name, json.loads(part.arguments)
    return {Text: "text", Reasoning: "reasoning"}[type(part)], part.text


MOVED, STOPPED = ("call", "move", {"x": 1}), ("call", "stop", {})


@pytest.mark.parametrize("cut", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (CALL, [MOVED]),
        (f" {CALL}\n", [MOVED]),
        (f"<tool_call>\n{CALL}\n</tool_call>", [MOVED]),
        (f"<tool_call>{CALL}", [MOVED]),
        (CALL.replace("arguments", "parameters"), [MOVED]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{STOP}</tool_call>\n", [MOVED, STOPPED]),
        (f"I move.\n\n<tool_call>{CALL}</tool_call>", [("text", "I move."), MOVED]),
        (f"<tool_call>{CALL}</tool_call> Then this.", [MOVED, ("text", " Then this.")]),
        ("hello", [("text", "hello")]),
        (" hello <b> \n", [("text", " hello <b> \n")]),
        (f"Well: {CALL}", [("text", f"Well: {CALL}")]),
        ('{"name": "fly", "arguments": {}}', [("text", '{"name": "fly", "arguments": {}}')]),
        ('{"name": "move"}', [("text", '{"name": "move"}')]),
        ("<tool_call>{bad}</tool_call>", [("text", "<tool_call>{bad}</tool_call>")]),
        ("a <tool_call", [("text", "a <tool_call")]),
        ("{", [("text", "{")]),
        ("[1]", [("text", "[1]")]),
        ("", []),
    ],
)
def test_calls_are_found_in_the_forms_that_models_write(text, parts, cut):
    assert found(text, cut) == parts


@pytest.mark.parametrize("cut", [0, 1, 3])
@pytest.mark.parametrize(
    ("text", "is_open", "parts"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, [("reasoning", "hm"), ("text", "yes")]),
        ("hm</think>yes", True, [("reasoning", "hm"), ("text", "yes")]),
        ("</think>\n\nyes", True, [("text", "yes")]),
        ("still </thin", True, [("reasoning", "still </thin")]),
        (f"<think>move</think>\n{CALL}", False, [("reasoning", "move"), MOVED]),
        (f"<think>a\n{CALL}</think>b", False, [("reasoning", f"a\n{CALL}"), ("text", "b")]),
        ("yes <think>no</think>", False, [("text", "yes <think>no</think>")]),
        ("<thin", False, [("text", "<thin")]),
        ("<think>a</think><think>b</think>", False, [("reasoning", "a"), ("text", "<think>b</think>")]),
    ],
)
def test_reasoning_stands_before_the_answer(text, is_open, parts, cut):
    assert found(text, cut, reasons=True, is_reasoning=is_open) == parts


def test_text_that_is_neither_is_given_out_at_once():
    parser = ChatParser()
    assert [parser.push(piece) for piece in ("<think>", " {")] == [[Text("<think>")], [Text(" {")]]
    parser = ChatParser(TOOLS, reasons=True)
    assert parser.push("Hello") == [Text("Hello")]
    assert parser.push(" <tool") == []
    assert parser.push("s>") == [Text(" <tools>")]


def test_deep_nesting_is_text():
    assert found("{" * 10**5) == [("text", "{" * 10**5)]


@pytest.mark.parametrize(("number", "read"), [("1e999", 1.7976931348623157e308), ("-1e999", -1.7976931348623157e308)])
def test_a_number_that_no_float_holds_is_the_largest(number, read):
    """A form of ``{"type": "number"}`` lets it through, and the call is one nevertheless."""
    text = CALL.replace("1}", number + ', "y": 7}')
    assert found(text) == [("call", "move", {"x": read, "y": 7})]
    broken = CALL.replace("1}", number + r', "y": "\ud800"}')
    assert found(broken) == [("text", broken)]
