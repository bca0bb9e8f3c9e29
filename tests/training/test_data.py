"""Rows of a JSONL file, and where the loss is."""

import pytest
from transformers import AutoTokenizer

from rung.core.errors import BadFile, ModelNotFound, UsageError
from rung.training.data import IGNORED, Dropped, encode_rows, read_rows
from tests.training.rows import chat_folder, question, write


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    chat_folder(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_what_cannot_be_used_is_counted_with_its_lines(tmp_path):
    bad = {"messages": [{"role": "user", "content": "no answer"}]}
    rows, dropped = read_rows(
        write(tmp_path / "d", question(1), "{", "", {"text": " "}, {"x": 1}, [], bad, {"messages": 3}, *["x"] * 8)
    )
    assert [row.line for row in rows] == [1]
    assert dropped.sentences() == [
        "9 rows left out: not JSON (line 2, 9, 10, 11, 12 ...)",
        "1 row left out: empty (line 4)",
        "1 row left out: neither messages nor text (line 5)",
        "1 row left out: a list; each row is an object in a line of its own (line 6)",
        "1 row left out: no answer of an assistant (line 7)",
        "1 row left out: messages are not a list of role and content (line 8)",
    ]


def test_bytes_that_are_no_text_are_not_trained_on(tmp_path):
    path = tmp_path / "d"
    lines = ['{"text": "caf\u00e9"}'.encode(), '{"text": "caf\u00e9"}'.encode("latin-1"), b'{"text": "tea"}\r']
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    rows, dropped = read_rows(path)
    assert [row.text for row in rows] == ["caf\u00e9", "tea"]
    assert dropped.sentences() == ["1 row left out: not UTF-8 (line 2)"]
    path.write_bytes(path.read_text(errors="replace").encode("utf-16"))
    with pytest.raises(BadFile, match=r"left out: not UTF-8 \(line 1[,)]"):
        read_rows(path)


def test_files_without_a_row(tmp_path):
    with pytest.raises(ModelNotFound, match="There is no file"):
        read_rows(tmp_path / "nowhere")
    with pytest.raises(BadFile, match=r"no row to train on[\s\S]*2 rows left out: not JSON"):
        read_rows(write(tmp_path / "d", "a", "b"))
    with pytest.raises(BadFile, match=r"the file is empty"):
        read_rows(write(tmp_path / "e"))


def test_the_loss_is_on_answers_alone(tokenizer, tmp_path):
    talk = [("system", "s"), ("user", "a"), ("assistant", "bc"), ("user", "d"), ("assistant", "e")]
    row = {"messages": [{"role": role, "content": text} for role, text in talk]}
    rows, dropped = read_rows(write(tmp_path / "d", row, {"text": "xy"}))
    encoded = encode_rows(rows, tokenizer, 64, dropped)
    first, second = encoded.rows
    assert tokenizer.decode(first["input_ids"]) == "<s>s</><u>a</><a>bc</><u>d</><a>e</>"
    learned = [token for token, label in zip(first["input_ids"], first["labels"], strict=True) if label != IGNORED]
    assert tokenizer.decode(learned) == "bc</>e</>"
    assert second["labels"] == second["input_ids"] == [*tokenizer("xy").input_ids, tokenizer.eos_token_id]
    assert encoded.notes[1:] == (
        "1 conversation: loss on the answers of the assistant alone",
        "1 text: loss on every token",
    )


def test_long_rows_are_cut_and_counted(tokenizer, tmp_path):
    rows, dropped = read_rows(write(tmp_path / "d", question(10**30), {"text": "a" * 40}))
    encoded = encode_rows(rows, tokenizer, 8, dropped)
    assert encoded.longest == 8
    assert "1 row cut to 8 tokens:  --max-length keeps more" in encoded.notes
    assert dropped.sentences() == ["1 row left out: nothing to learn in its first 8 tokens (line 1)"]
    with pytest.raises(BadFile, match=r"No row is left[\s\S]*--max-length (\d+)") as left:
        encode_rows(rows[:1], tokenizer, 8, Dropped())
    said = int(left.value.ways_out[0].split()[1])
    assert len(encode_rows(rows[:1], tokenizer, said, Dropped()).rows[0]["input_ids"]) == said > 16


def test_what_an_assistant_says_first_is_no_answer(tokenizer, tmp_path):
    first = {"role": "assistant", "content": "hello"}
    rows, dropped = read_rows(
        write(tmp_path / "d", {"messages": [first]}, {"messages": [first, *question(1)["messages"]]})
    )
    assert dropped.sentences() == ["1 row left out: no answer of an assistant (line 1)"]
    (row,) = encode_rows(rows, tokenizer, 64, dropped).rows
    learned = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != IGNORED]
    assert tokenizer.decode(learned) == "red</>"


def test_half_characters_are_not_trained_on(tmp_path):
    half = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\ud83d"}]}
    rows, dropped = read_rows(write(tmp_path / "d", {"text": "\ud800"}, half, {"text": "\U0001f600"}))
    assert [row.text for row in rows] == ["\U0001f600"]
    assert dropped.sentences() == [
        "2 rows left out: half a character (an escape \\ud800 ... \\udfff alone) (line 1, 2)"
    ]


def test_a_template_that_refuses_a_row_drops_it(tokenizer, tmp_path):
    """As Gemma's does with a system message."""
    bad = {"messages": [{"role": "system", "content": "s"}, *question(1)["messages"]]}
    rows, dropped = read_rows(write(tmp_path / "d", bad, question(2)))
    template = tokenizer.chat_template
    refusing = "{% if messages and messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = refusing + template
    try:
        assert len(encode_rows(rows, tokenizer, 64, dropped).rows) == 1
    finally:
        tokenizer.chat_template = template
    assert dropped.sentences() == ["1 row left out: the chat template refuses it: no system role (line 1)"]


def test_templates_that_hide_answers_or_are_not_there(tokenizer, tmp_path):
    rows, dropped = read_rows(write(tmp_path / "d", question(1), {"text": "a"}))
    template, tokenizer.chat_template = tokenizer.chat_template, "{{ messages|length }}{{ messages[-1]['content'] }}"
    try:
        assert len(encode_rows(rows, tokenizer, 64, dropped).rows) == 1
        assert "the chat template does not show where answers begin (line 1)" in dropped.sentences()[0]
        tokenizer.chat_template = None
        with pytest.raises(UsageError, match="no chat template"):
            encode_rows(rows, tokenizer, 64, dropped)
    finally:
        tokenizer.chat_template = template
