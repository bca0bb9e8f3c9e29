"""Names to paths, against a hub of our own on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from hub_server import Hub

from rung.core.errors import DoesNotFit, HubError, ModelNotFound, UnsafeFile
from rung.models import hub
from rung.models.locate import WORKING_BYTES, locate

GB = 2**30


QUANTIZED = {
    "README.md": b"r",
    "tiny-Q2_K.gguf": b"2" * 20,
    "tiny-Q4_K_M.gguf": b"4" * 40,
    "tiny-Q8_0.gguf": b"8" * 80,
    "tiny.BF16.gguf": b"b" * 160,
    "mmproj-model-f16.gguf": b"m" * 500,
    "sub/tiny-IQ3_XXS.gguf": b"3" * 30,
}
FOLDER = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"spm",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"x",
    "README.md": b"r",
    "model-00001-of-00002.safetensors": b"a",
    "model-00002-of-00002.safetensors": b"b",
    "model.safetensors.index.json": b"{}",
    "consolidated.safetensors": b"c",
    "pytorch_model.bin": b"pickle",
    "original/model.safetensors": b"o",
}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_exists_is_its_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    Path("org/model").mkdir()
    Path("org/model.gguf").write_bytes(b"GGUF")
    assert locate("org/model").path == Path("org/model")
    assert locate("org/model.gguf").path == Path("org/model.gguf")
    assert locate(str(tmp_path)).notes == ()


def test_a_folder_of_the_hub_without_what_is_not_needed(server: Hub) -> None:
    server.repositories["org/model"] = FOLDER
    found = locate("org/model")
    assert names(found.path) == set(FOLDER) - {
        "README.md", "tokenizer.model", "consolidated.safetensors", "pytorch_model.bin", "original/model.safetensors"
    }  # fmt: skip
    assert (found.path / "model-00002-of-00002.safetensors").read_bytes() == b"b"
    assert not any("pytorch_model" in path for _, path, _ in server.requests)


def test_a_bare_tokenizer_model_is_fetched_where_there_is_no_json(server: Hub) -> None:
    files = {name: data for name, data in FOLDER.items() if name != "tokenizer.json"}
    server.repositories["org/model"] = files
    older = {"vocab.json": b"{}", "merges.txt": b"m"}
    server.repositories["org/model"] = files | older
    assert "tokenizer.model" in names(found := locate("org/model").path)
    assert not names(found) & older.keys()
    server.repositories["org/older"] = {name: files[name] for name in files if name != "tokenizer.model"} | older
    assert names(locate("org/older").path) >= older.keys()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("org/tiny:Q8_0", "tiny-Q8_0.gguf"),
        ("org/tiny:q8_0", "tiny-Q8_0.gguf"),
        ("org/tiny:BF16", "tiny.BF16.gguf"),
        ("org/tiny:IQ3_XXS", "sub/tiny-IQ3_XXS.gguf"),
        ("org/tiny/tiny-Q2_K.gguf", "tiny-Q2_K.gguf"),
        ("org/tiny/sub/tiny-IQ3_XXS.gguf", "sub/tiny-IQ3_XXS.gguf"),
        ("org/tiny", "tiny-Q4_K_M.gguf"),
    ],
)
def test_a_file_of_a_gguf_repository(server: Hub, name: str, file: str) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    found = locate(name, memory_budget=10 * GB)
    assert str(found.path).endswith(file)
    assert found.path.read_bytes() == QUANTIZED[file]
    assert len([path for _, path, _ in server.requests if path.endswith(".gguf")]) <= 2  # nothing else was fetched


def test_a_bare_name_takes_what_fits_and_lists_the_others(server: Hub) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    server.sizes = {
        "tiny-Q2_K.gguf": 2 * GB, "tiny-Q4_K_M.gguf": 4 * GB, "tiny-Q8_0.gguf": 8 * GB, "sub/tiny-IQ3_XXS.gguf": 3 * GB
    }  # fmt: skip
    free = hub.shutil.disk_usage
    hub.shutil.disk_usage = lambda _: type("U", (), {"free": 100 * GB})()  # type: ignore[assignment]
    try:
        roomy = locate("org/tiny", memory_budget=100 * GB)
        assert roomy.path.name == "tiny-Q4_K_M.gguf"
        (note,) = roomy.notes
        assert "Q4_K_M (4.0 GB); also there: Q8_0 (8.0 GB), IQ3_XXS (3.0 GB), Q2_K (2.0 GB), BF16" in note
        assert "mmproj" not in note
        assert locate("org/tiny", memory_budget=4 * GB).path.name == "tiny-IQ3_XXS.gguf"
        with pytest.raises(DoesNotFit) as caught:
            locate("org/tiny", memory_budget=WORKING_BYTES)
        assert "rung run org/tiny:" in str(caught.value)
    finally:
        hub.shutil.disk_usage = free


def test_without_q4_k_m_the_best_that_fits(server: Hub) -> None:
    server.repositories["org/tiny"] = {name: data for name, data in QUANTIZED.items() if "Q4_K_M" not in name}
    assert locate("org/tiny", memory_budget=10 * GB).path.name == "tiny.BF16.gguf"


def test_a_split_file_comes_whole(server: Hub) -> None:
    parts = {f"big-Q4_K_M-0000{n}-of-00003.gguf": bytes([n]) for n in (1, 2, 3)}
    server.repositories["org/big"] = parts
    for name in ("org/big", "org/big:Q4_K_M", "org/big/big-Q4_K_M-00001-of-00003.gguf"):
        found = locate(name, memory_budget=10 * GB)
        assert found.path.name == "big-Q4_K_M-00001-of-00003.gguf"
        assert names(found.path.parent) == set(parts)
    server.repositories["org/torn"] = {name: data for name, data in parts.items() if "00002-of" not in name}
    with pytest.raises(HubError, match="1 of 3 parts"):
        locate("org/torn", memory_budget=10 * GB)


def test_a_download_that_broke_goes_on_where_it_ended(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    data = bytes(range(256)) * 40_000
    server.repositories["org/tiny"] = {"tiny-Q8_0.gguf": data}
    server.break_after = 3_000_000
    heard: list[tuple[str, int, int]] = []
    found = locate("org/tiny:Q8_0", progress=lambda *what: heard.append(what))
    assert found.path.read_bytes() == data
    ranges = [byte_range for command, _, byte_range in server.requests if command == "GET" and byte_range]
    assert ranges
    assert 0 < int(ranges[-1].removeprefix("bytes=").split("-")[0]) <= 3_000_000
    assert heard[-1] == ("tiny-Q8_0.gguf", len(data), len(data))
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


def test_a_download_that_was_interrupted_goes_on_the_next_time(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    data = bytes(range(256)) * 40_000
    server.repositories["org/tiny"] = {"tiny-Q8_0.gguf": data}

    def interrupt(_: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate("org/tiny:Q8_0", progress=interrupt)
    assert locate("org/tiny:Q8_0").path.read_bytes() == data
    begins = [int(byte_range.split("=")[1].split("-")[0]) for _, _, byte_range in server.requests if byte_range]
    assert max(begins) > len(data) // 3


def test_a_rest_that_is_longer_than_the_file_is_thrown_away(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository has a shorter file under the same name by now, or the disk was full."""
    from huggingface_hub import constants

    data = bytes(range(256)) * 40_000
    server.repositories["org/tiny"] = {"tiny-Q8_0.gguf": data}
    first = locate("org/tiny:Q8_0").path
    blob = first.resolve()
    assert Path(constants.HF_HUB_CACHE) in blob.parents
    blob.with_name(f"{blob.name}.rung.part").write_bytes(bytes(len(data) + 5))
    first.unlink()
    blob.unlink()
    assert locate("org/tiny:Q8_0").path.read_bytes() == data


def test_what_is_downloaded_is_not_fetched_again_and_serves_offline(server: Hub) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    first = locate("org/tiny:Q8_0")
    fetched = len([1 for command, path, _ in server.requests if command == "GET" and path.endswith(".gguf")])
    assert locate("org/tiny:Q8_0") == first
    assert len([1 for command, path, _ in server.requests if command == "GET" and path.endswith(".gguf")]) == fetched
    before = len(server.requests)
    assert locate("org/tiny:Q8_0", offline=True).path == first.path
    assert locate("org/tiny", offline=True, memory_budget=10 * GB).path == first.path
    assert len(server.requests) == before
    with pytest.raises(ModelNotFound, match="as it was downloaded has no Q2_K"):
        locate("org/tiny:Q2_K", offline=True)
    with pytest.raises(HubError, match="is not downloaded"):
        locate("org/other", offline=True)


def test_a_revision_is_its_own_download(server: Hub) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    assert locate("org/tiny:Q8_0", revision="v1").path.exists()
    assert any("/v1/" in path or path.endswith("/v1") for _, path, _ in server.requests)
    with pytest.raises(HubError, match="no revision v9"):
        locate("org/tiny:Q8_0", revision="v9")


def test_the_token_is_sent(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.repositories["org/tiny"] = QUANTIZED
    locate("org/tiny:Q2_K")
    assert server.token == "Bearer hf_secret"


def test_without_a_network_what_was_downloaded_serves_and_it_is_said(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    server.repositories["org/tiny"] = QUANTIZED
    first = locate("org/tiny:Q8_0")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    found = locate("org/tiny:Q8_0")
    assert found.path == first.path
    assert "cannot be reached" in found.notes[0]
    with pytest.raises(HubError, match="cannot be reached"):
        locate("org/never-seen")


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (404, "RepoNotFound", ModelNotFound, "no model org/model"),
        (401, "RepoNotFound", ModelNotFound, "you may not see it"),
        (403, "GatedRepo", HubError, "is gated"),
        (401, "GatedRepo", HubError, "hf auth login"),
        (403, "", HubError, "does not give"),
        (500, "", HubError, "status 500"),
    ],
)
def test_a_refusal_of_the_hub_says_what_to_do(server: Hub, status: int, code: str, kind: type, words: str) -> None:
    server.status["org/model"] = (status, code)
    with pytest.raises(kind) as caught:
        locate("org/model")
    assert words in str(caught.value)
    assert caught.value.facts


def test_only_pickles_are_refused_with_the_way_to_convert_them(server: Hub) -> None:
    server.repositories["org/old"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(UnsafeFile) as caught:
        locate("org/old")
    assert "hf download org/old" in str(caught.value)
    assert "rung convert OLD NEW" in str(caught.value)
    assert not any(path.endswith(".bin") for _, path, _ in server.requests)


def test_a_repository_without_a_model_is_no_model(server: Hub) -> None:
    server.repositories["org/data"] = {"train.csv": b"x"}
    with pytest.raises(ModelNotFound, match="holds no model"):
        locate("org/data")
    server.repositories["org/vision"] = {"mmproj-f16.gguf": b"x"}
    with pytest.raises(ModelNotFound, match="holds no model"):
        locate("org/vision")


def test_a_wrong_file_or_quantization_names_the_near_ones(server: Hub) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    with pytest.raises(ModelNotFound) as caught:
        locate("org/tiny:Q4_K_S")
    assert "rung run org/tiny:Q4_K_M" in str(caught.value)
    with pytest.raises(ModelNotFound) as caught:
        locate("org/tiny/tiny-Q4_K.gguf")
    assert "rung run org/tiny/tiny-Q4_K_M.gguf" in str(caught.value)


def test_a_disk_that_is_too_small_is_said_before_the_download(server: Hub) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    server.sizes["tiny-Q8_0.gguf"] = 2**60
    with pytest.raises(HubError) as caught:
        locate("org/tiny:Q8_0")
    assert "does not fit on the disk" in str(caught.value)
    assert not any(path.endswith(".gguf") for _, path, _ in server.requests)


def test_what_is_here_already_needs_no_room(server: Hub) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    first = locate("org/tiny:Q8_0")
    server.sizes["tiny-Q8_0.gguf"] = 2**60
    assert locate("org/tiny:Q8_0") == first


def test_a_disk_that_fills_up_is_said(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    server.repositories["org/tiny"] = QUANTIZED
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(HubError, match="does not fit on the disk"):
        locate("org/tiny:Q8_0")


@pytest.mark.parametrize(
    "name", ["gemma-2b", "./nothing.gguf", "/no/such/file", "a b/c", "org/tiny.gguf", "~/nothing", "a/b/c", ""]
)
def test_a_name_that_is_nothing_is_refused_without_asking_anybody(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "listing", None)
    if name:
        with pytest.raises(ModelNotFound, match="neither a file, a folder nor a name"):
            locate(name)


def test_a_name_that_is_nearly_a_local_file_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Gemma-2b-it.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound) as caught:
        locate("gemma2b-it.gguf")
    assert caught.value.ways_out == ("rung run Gemma-2b-it.gguf",)
    with pytest.raises(ModelNotFound) as caught:
        locate("dmo")
    assert caught.value.ways_out == ("rung run demo",)


def test_a_folder_to_look_into_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    names = {"x.gguf": ".", "./models/x.gguf": "models", "./models/old/x.gguf": "models", "/no/x.gguf": "/"}
    for name, folder in names.items():
        with pytest.raises(ModelNotFound) as caught:
            locate(name)
        assert caught.value.ways_out[0] == f"ls {folder}   # what is there"


def test_what_is_no_model_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("training", "gemma-2b"):
        Path(folder).mkdir()
    Path("gemma-2b/config.json").write_text("{}")
    Path("missing.txt").write_text("")
    with pytest.raises(ModelNotFound) as caught:
        locate("missing")
    assert caught.value.ways_out == ("rung run demo",)
    with pytest.raises(ModelNotFound) as caught:
        locate("gemma2b")
    assert caught.value.ways_out == ("rung run gemma-2b",)


def test_the_environment_variables_of_the_hub_are_honored(server: Hub, tmp_path: Path) -> None:
    server.repositories["org/tiny"] = QUANTIZED
    program = "from rung.models.locate import locate; import sys; print(locate('org/tiny:Q2_K').path)"
    environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "home")


def test_looking_at_local_paths_imports_no_hub(tmp_path: Path) -> None:
    program = (
        "import sys; from rung.models.locate import locate; locate('.'); sys.exit('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=60).returncode == 0
