"""Commands that errors propose can be pasted into a shell, whatever files are called."""

import shlex

import pytest

from rung.cli.making import make
from rung.core.errors import RungError
from rung.measure import curves, pictures
from rung.models.locate import locate
from rung.pipelines.batch import Done


def nowhere(folder):
    (folder / "my model.gguf").touch()
    locate(str(folder / "my modle.gguf"))


def pickles(folder):
    (folder / "my model.pt").touch()
    locate(str(folder / "my modle.pt"))


def broken_journal(folder):
    (folder / "a cat.jsonl").write_text("{}}\n")
    Done(folder / "a cat.mp4", {}).left([])


def no_prompt(folder):
    names = ("device", "software", "memory", "format", "plan", "offline", "revision", "quiet", "json")
    make(str(folder), None, None, {}, folder, 8.0, command="video", **dict.fromkeys(names))


#: What goes wrong, and the words of the path that the command must keep together, by the folder that it happens in.
TROUBLE = [
    (nowhere, "my model.gguf"),
    (pickles, "my model.pt"),
    (broken_journal, "a cat.jsonl"),
    (no_prompt, ""),
    (lambda folder: pictures.check_destination(folder / "no such" / "x.gif", 1), "no such"),
    (lambda folder: curves.check_curves(folder / "x.jpg"), "x.svg"),
]


@pytest.mark.parametrize(("trouble", "kept"), TROUBLE, ids=[each.__name__ for each, _ in TROUBLE])
def test_a_path_is_one_word_of_the_command(tmp_path, trouble, kept):
    folder = tmp_path / "it's; rm -r *"
    folder.mkdir()
    with pytest.raises(RungError) as refused:
        trouble(folder)
    words = [word for way in refused.value.ways_out for word in shlex.split(way)]
    assert str(folder / kept) in words
