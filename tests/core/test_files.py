"""Files that are there whole or not at all."""

import os
import shutil

import pytest

from rung.core.files import files_below, trim, used, write_whole, written_whole


def test_what_fails_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "scene.ply"
    write_whole(path, b"old")

    def fail():
        with written_whole(path) as temporary:
            temporary.write_bytes(b"ne")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["scene.ply"]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "whole", b"1")
    assert os.stat(tmp_path / "whole").st_mode == os.stat(tmp_path / "plain").st_mode


def test_a_cache_loses_what_was_used_longest_ago(tmp_path):
    for age, name in enumerate(("new", "folder", "old")):
        path = tmp_path / name
        if name == "folder":
            path.mkdir()
            (path / "part").write_bytes(bytes(100))
        else:
            path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    trim(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 3
    trim(tmp_path, 199)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    used(tmp_path / "new")
    trim(tmp_path, 0)  # something may be computing with it
    assert (tmp_path / "new").is_file()
    trim(tmp_path / "none", 0)


def test_files_are_listed_while_folders_vanish(tmp_path):
    (tmp_path / "kept").write_text("")
    (tmp_path / "sub" / "sub").mkdir(parents=True)
    (tmp_path / "sub" / "sub" / "gone").write_text("")
    listed = files_below(tmp_path)
    assert next(listed) == tmp_path / "kept"
    shutil.rmtree(tmp_path / "sub")
    assert not list(listed)
