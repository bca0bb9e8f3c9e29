"""Names of pictures: all different, none outside of the folder."""

import pytest

from rung.splats.render import stems


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a/x.jpg", "b/x.jpg", "y.z.png"], ["a/x", "b/x", "y.z"]),
        (["x.jpg", "x.png"], ["x.jpg", "x.png"]),
        (["../a/x.jpg", "a/x.jpg"], ["a/x.jpg", "a/x.jpg-2"]),
        (["x", "../x", "./x", "x-2"], ["x", "x-2", "x-3", "x-2-2"]),
        (["..\\..\\a\\b.jpg", "/etc/c.jpg"], ["a/b", "etc/c"]),
        (["..", "", "a/.."], ["photograph", "photograph-2", "a"]),
    ],
)
def test_stems_differ_and_stay_inside(names, found):
    assert [str(stem) for stem in stems(names)] == found
