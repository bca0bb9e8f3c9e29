"""Device files of one's own: what is wrong with one is said with the key and what belongs there."""

import pytest

from rung.core.errors import UsageError
from rung.hardware import catalog

GOOD = {
    "name": '"My card"',
    "arch": '"sm_86"',
    "memory": "24",
    "bandwidth": "600",
    "peaks": "{ f32 = 20, f16 = 40 }",
}


def write(path, **changes):
    rows = {**GOOD, **changes}
    path.write_text("\n".join(f"{key} = {value}" for key, value in rows.items() if value is not None))
    return str(path)


def test_a_file_is_a_device(tmp_path):
    device = catalog.device(write(tmp_path / "card.toml", free="23"), software="torch 2.3+cu121", memory="12GB")
    assert (device.name, device.arch, device.memory) == ("My card", "sm_86", 12 << 30)
    assert device.peaks["f16"] == 40e12
    assert device.software["cuda"] == "12.1"
    assert not device.real
    assert catalog.device(write(tmp_path / "card.toml", free="23")).free == 23 << 30


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memry": "12"}, "'memry' that means nothing. Did you mean memory"),
        ({"memory": None}, "lacks memory: GB of 2^30 bytes"),
        ({"memory": '"12"'}, "memory = '12'"),
        ({"memory": "0"}, "memory = 0"),
        ({"memory": "-3"}, "memory = -3"),
        ({"memory": "12884901888"}, "memory = 12884901888"),
        ({"memory": "nan"}, "memory = nan"),
        ({"memory": "true"}, "memory = True"),
        ({"name": '""'}, "name = ''"),
        ({"arch": '"sm_68"'}, "'sm_68' that the catalog does not have. Did you mean sm_"),
        ({"peaks": "{ f16 = 40 }"}, "lacks peaks.f32"),
        ({"peaks": "{ f32 = 20, fp16 = 40 }"}, "'fp16', which is no dtype"),
        ({"peaks": "20"}, "peaks = 20"),
        ({"free": "25"}, "more free memory than memory"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, changes, said):
    with pytest.raises(UsageError) as caught:
        catalog.device(write(tmp_path / "card.toml", **changes))
    assert said in str(caught.value)


def test_files_that_are_none(tmp_path):
    for name, content in (("no.toml", b"= = ="), ("binary.toml", b"\xff\xfe\x00"), ("deep.toml", b"a=" + b"[" * 5000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="is no TOML"):
            catalog.device(str(tmp_path / name))
    (tmp_path / "large.toml").write_bytes(b"#" * 100_000)
    with pytest.raises(UsageError, match="far too large"):
        catalog.device(str(tmp_path / "large.toml"))
    with pytest.raises(UsageError, match="cannot be read"):
        catalog.device(str(tmp_path / "missing.toml"))
