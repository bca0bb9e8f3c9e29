"""``rung explain``: what it takes as a log, its exit codes, its JSON, and what it refuses."""

import json
import subprocess
import sys

import pytest

from rung.cli.app import main
from rung.diagnosis import machine
from rung.diagnosis.explain import explain

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
KEYS = {"cause", "certainty", "confidence", "fixes", "automatic", "alternatives", "evidence", "repairs", "works"}


@pytest.fixture
def run(capsys):
    """Runs a command line; returns exit code, stdout, stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["explain", *map(str, arguments)])
        said = capsys.readouterr()
        return stopped.value.code or 0, said.out, said.err

    return call


def test_a_line_is_explained_on_a_card(run):
    code, out, _ = run(IMAGE, "--device", "rtx 5090")
    assert code == 0
    first, *rest = out.splitlines()
    assert first == "Almost certainly: the installed build is older than this GPU and holds no code for it."
    assert any("RTX 5090 has compute capability 12.0" in line for line in rest)
    assert any(line.strip().startswith("pip install torch==") for line in rest)


def test_the_software_of_a_card_is_known_where_it_is_named():
    card = {"gpu": "Quadro P2200", "compute_capability": "6.1"}
    assert machine.catalog_card("p2200") == card
    assert machine.catalog_card("p2200", "torch 1.10+cu102") == card | {"torch": "1.10.0", "cuda": "10.2"}


def test_a_file_is_a_log_and_lines_are_numbered(run, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"loading\nstep 1\n{IMAGE}\n", encoding="utf-16")
    code, out, _ = run(log, "--device", "gtx 1080", "--json")
    found = json.loads(out)
    assert (code, found["cause"], set(found)) == (0, "build-lacks-old-arch", KEYS)
    assert found["evidence"][0]["line"] == 3
    assert {"label", "text", "command"} == set(found["fixes"][0])
    assert len(found["alternatives"]) >= 2


def test_stdin_is_a_log():
    command = [sys.executable, "-m", "rung", "explain", "--no-environment", "--json"]
    done = subprocess.run(command, input=b"CUDA out of memory. Tried", capture_output=True, check=True)
    assert json.loads(done.stdout)["cause"] == "gpu-out-of-memory"


def test_an_unknown_log_exits_with_3(run):
    code, out, _ = run("all is well today", "--json")
    found = json.loads(out)
    assert (code, found["cause"], found["confidence"]) == (3, None, 0)


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_log_exits_with_3_and_says_how_to_ask(run, tmp_path, text):
    log = tmp_path / "empty.log"
    log.write_text(text)
    code, out, _ = run(log, "--no-environment")
    assert code == 3
    assert out.startswith("There is no log to explain.\nWhat to do\n  1  python train.py 2>&1 | rung explain\n")
    assert json.loads(run(log, "--no-environment", "--json")[1])["cause"] is None


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("CUBLAS_STATUS_NOT_SUPPORTED", "bf16-unsupported-gpu"),
        ("igemmlt", "int8-matmul-unsupported-gpu"),
        ("torch.cuda.OutOfMemoryError", "gpu-out-of-memory"),
        ("libcudnn.so.8:cannot", "cuda-library-not-found"),
        ("VK_ERROR_INCOMPATIBLE_DRIVER", "graphics-api-feature-missing"),
    ],
)
def test_one_word_that_is_no_file_is_a_line_and_never_surer_than_one_of_two_or_three(run, word, cause):
    code, out, _ = run(word, "--no-environment", "--json")
    found = json.loads(out)
    assert code == 0
    assert cause in [found["cause"], *(item["cause"] for item in found["alternatives"][:2])]
    assert found["confidence"] <= 0.65
    assert found["certainty"] in ("one of two or three", "not sure")
    assert not found["automatic"]
    assert sum([found["confidence"], *(item["confidence"] for item in found["alternatives"])]) <= 1.001


def test_a_word_that_nothing_knows_is_not_known(run):
    code, out, err = run("sdlkfjsldkfj", "--no-environment")
    assert (code, err) == (3, "")
    assert out.splitlines()[0].startswith("I do not know this one")
    assert "What to do" not in out


def test_a_contradiction_is_told_with_what_was_believed(run, tmp_path):
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"gpu": "RTX 5090", "compute_capability": "6.1"}))
    _, out, _ = run(IMAGE, "--environment", file)
    assert "the environment says 6.1: the latter is believed" in " ".join(out.split())


def test_an_unknown_card_is_no_error(run, tmp_path):
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"gpu": "FooBar 9000", "driver": "banana", "torch": None}))
    code, out, _ = run("CUDA out of memory", "--environment", file, "--json")
    assert (code, json.loads(out)["cause"]) == (0, "gpu-out-of-memory")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"gpu": "RTX 3090"}, "the environment says 8.6: the latter is believed"),
        ({"gpu": "RX 7900 XTX"}, "the environment names RX 7900 XTX, which has none: the latter is believed"),
        ({"gpu": "none"}, "the environment says that there is none: the former is believed"),
        ({"gpu": "none", "compute_capability": "8.9"}, "its compute capability is 8.9: the latter is believed"),
        ({"gpu": "RTX 5090"}, ""),
        ({}, ""),
    ],
)
def test_a_log_against_its_environment(environment, said):
    log = f"NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch\n{IMAGE}"
    found = explain(log, environment).evidence
    against = " ".join(item.fact for item in found if item.source == "the environment given")
    assert said in against
    assert bool(said) == bool(against)
    assert not any(item.fact.startswith("RX 7900 XTX has compute capability") for item in found)


@pytest.mark.parametrize(
    ("name", "cause", "said"),
    [
        ("FooBar 9000", "build-wrong-arch-flags", "Nothing is taken for known of it."),
        ("8x H100 80GB", "build-lacks-new-arch", ""),
        ("RTX 20xx", "build-wrong-arch-flags", ""),
    ],
)
def test_a_card_as_people_write_it(run, name, cause, said):
    code, out, err = run(IMAGE, "--device", name, "--json")
    assert (code, json.loads(out)["cause"]) == (0, cause)
    assert (said in err, bool(err)) == (True, bool(said))


def test_it_happened_without_a_gpu(run):
    said = "Torch not compiled with CUDA enabled"
    assert run(said, "--device", "cpu", "--json")[:2] == run(said, "--device", "CPU", "--json")[:2]
    assert run(said, "--device", "cpu")[0] == 0


def test_a_reader_that_goes_is_no_error():
    command = f"{sys.executable} -m rung explain --list | head -n 1; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_a_binary_is_no_log_that_it_knows(run, tmp_path):
    log = tmp_path / "weights.bin"
    log.write_bytes(bytes(range(256)) * 64)
    assert run(log, "--no-environment")[0] == 3


def test_an_environment_replaces_this_machine_wholly(run, tmp_path):
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"gpu": "8x H100 80GB", "compute_capability": None, "color": "red"}))
    code, out, _ = run(IMAGE, "--environment", file, "--json")
    assert code == 0
    assert json.loads(out)["cause"] == "build-lacks-new-arch"


def test_a_label_is_its_page(run):
    code, out, _ = run("driver-too-old")
    assert code == 0
    assert "older than the program needs" in out
    assert "Driver Release 545.23 or later, but version 470.82" in out


def test_the_list_holds_every_cause(run):
    _, out, _ = run("--list", "--json")
    assert len(json.loads(out)) == 37


def test_many_rows_are_answered_as_one_by_one(run, tmp_path):
    rows = [
        {"id": "a", "log": IMAGE, "environment": {"gpu": "RTX 5090"}},
        {"id": "b", "log": "hello", "environment": {}},
        {"id": "c", "log": "Illegal instruction (core dumped)"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    code, out, _ = run("--jsonl", file)
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, [row["id"] for row in found]) == (0, ["a", "b", "c"])
    assert [row["cause"] for row in found] == ["build-lacks-new-arch", None, "cpu-instruction-missing"]
    assert all(set(row) == KEYS | {"id"} for row in found)


def test_a_broken_row_does_not_cost_the_others(run, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = ['{"id": 1, "log": "Illegal instruction"}', "not json", "[1]", '{"id": 2}', "[" * 100_000]
    rows.append('{"id": 3, "log": "x", "environment": "T4"}')
    file.write_text("\ufeff" + "\n".join(rows))
    code, out, err = run("--jsonl", file)
    assert code == 2
    assert [json.loads(line)["id"] for line in out.splitlines()] == [1, None, None, 2, None, 3]
    assert "5 of the rows" in err
    assert 'line 4: no object with a "log"' in json.loads(out.splitlines()[3])["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing-like-this.log"], "There is no file nothing-like-this.log"),
        (["logs/nothing-like-this"], "There is no file logs/nothing-like-this"),
        (["driver-too-od"], "Did you mean driver-too-old?"),
        (["/"], "is a folder"),
        (["  "], "is empty"),
        ([""], "is empty"),
        ([IMAGE, "--device", " "], "no device called"),
        ([IMAGE, "--device", "no such card", "--software", "torch 1.10+cu102"], "no device called"),
        ([IMAGE, "--environment", "/nowhere.json"], "cannot be read"),
        ([IMAGE, "--device", "t4", "--no-environment"], "exclude each other"),
        ([IMAGE, "--software", "torch 1.10+cu102"], "name it with --device"),
        (["--jsonl", "/nowhere.jsonl"], "cannot be read"),
    ],
)
def test_a_wrong_question_exits_with_2_and_says_why(run, arguments, said):
    code, _, err = run(*arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["[1, 2]", "not json", '"P2200"', "[" * 100_000])
def test_an_environment_that_is_none_exits_with_2(run, tmp_path, text):
    file = tmp_path / "environment.json"
    file.write_text(text)
    code, _, err = run(IMAGE, "--environment", file)
    assert (code, "JSON" in err, str(file) in err.splitlines()[0]) == (2, True, True)
    assert f"> {file}" in err.splitlines()[-1]


def test_a_redacted_log_holds_no_names_and_no_tokens(run, tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "File /home/anna/project/train.py\nC:\\Users\\Anna\\model.bin\nHF_TOKEN=hf_abcdefghijklmnop\n"
        "https://anna:secret@example.org/x from 192.168.4.7 by anna.b@example.org\napi_key: 'sk-123456789012345'\n"
    )
    code, out, _ = run(log, "--redact")
    assert code == 0
    for private in ("anna", "Anna", "hf_abc", "secret@", "192.168.4.7", "sk-123", "example.org/x from 192"):
        assert private not in out
    assert "/home/<user>/project/train.py" in out


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("WANDB_API_KEY=0123abcd4567", "0123abcd"),
        ("--api-key q8Zx7Yw6Vu5Ts4Rq3Po2", "q8Zx"),
        ("Authorization: Bearer eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig", "eyJ"),
        ("File C:\\\\Users\\\\Anna\\\\a.py", "Anna"),
        ("File C:\\Users\\Anna Maria\\a.py", "Maria"),
        ("listening on 2001:db8:0:1:2:3:4:5 and fe80::1ff:fe23:4567:890a", "db8"),
        ("google AIzaSyA1234567890abcdefg", "AIzaSy"),
        ("wandb: api key: 0123abcd4567", "0123abcd"),
        ("train.py --password hunter2 --epochs 3", "hunter2"),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1 anna@box", "AAAAC3"),
        ("ping 2001:db8::ff00:42:8329", "db8"),
        ("anna@box /home/x $ python train.py", "anna"),
        ("in ~anna/project", "anna"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "wJalr"),
        ('"AccountKey": "Zm9vYmFyYmF6"', "Zm9v"),
        ("wandb: Currently logged in as: anna (team)", "anna"),
        ("USER=anna HOSTNAME=annas-box", "anna"),
        ("ya29.a0AfH6SMBxyzabcdef", "a0AfH6"),
        ("//registry.npmjs.org/:npm_abcdefghijklmnopqrstuvwxyz0123456789", "npm_a"),
        ("Authorization: Basic YW5uYTpzZWNyZXQ=", "YW5u"),
        ("'secret': 'two words'", "words"),
        ("Set-Cookie: session=abcdef0123456789; Path=/", "abcdef"),
        ("https://bucket/x?X-Amz-Signature=0123abcdef&X-Amz-Date=1", "0123abcdef"),
        ('AZURE_KEY="Zm9vYmFyYmF6"', "Zm9v"),
        ("/Users/Anna Maria/models/x.gguf", "Maria"),
        ("open /scratch/anna/x and /run/media/anna/usb", "anna"),
        ("token in %2Fhome%2Fanna%2Fx", "anna"),
        ("\\\\nas01\\anna\\x.gguf", "anna"),
        ("[anna@node12 proj]$ python train.py", "anna"),
        ("UUID: GPU-12345678-1234-1234-1234-123456789abc", "12345678"),
        ("key -----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\nAAKCAQ\n-----END RSA PRIVATE KEY-----", "MIIEpAIB"),
    ],
)
def test_what_nobody_else_should_see(run, tmp_path, line, private):
    (tmp_path / "log").write_text(line)
    assert private not in run(tmp_path / "log", "--redact")[1]


def test_after_a_private_key_the_log_goes_on(run, tmp_path):
    begin, end = "-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----\n"
    (tmp_path / "log").write_text(f"one\n{begin}MIIE\n{end}two\n{begin}" + "x\n" * 300)
    said = run(tmp_path / "log", "--redact")[1].splitlines()
    assert said[:4] == ["one", "<key>", "two", "<key>"]
    assert 90 < said.count("x") < 110, "a key without an end does not swallow the log"


def test_what_a_log_says_of_tokens_stays(run, tmp_path):
    said = (
        "max_tokens: 2048, pad_token_id = 0, use_auth_token=True, 12:30:59 tokenizer: LlamaTokenizer\n"
        "KeyError: 'model.layers.0.self_attn.k_proj.weight', Missing key(s): user_id, primary_key=12\n"
        "at::cuda::blas::gemm dead::beef c10::BFloat16, torch==2.7.1 fa2F@v2.5.7 ~/x --token-budget 3\n"
        "session=tf.Session(), signature=(Tensor a), /usr/lib/x.so, C:\\\\Windows\\\\System32\\\\nvcuda.dll\n"
    )
    (tmp_path / "log").write_text(said)
    assert run(tmp_path / "log", "--redact")[1] == said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--list", "--redact"],
        ["--jsonl", "x", "--device", "t4"],
        ["--jsonl", "x", "--software", "torch 1.10+cu102"],
        ["--redact", "--json", "x y"],
        ["--jsonl", "x", "log"],
        ["driver-too-old", "--device", "t4"],
        ["driver-too-old", "--environment", "x"],
    ],
)
def test_options_without_an_effect_are_refused(run, arguments):
    code, _, err = run(*arguments)
    assert (code, "takes no notice of" in err) == (2, True)


def test_an_environment_as_windows_writes_it(run, tmp_path):
    file = tmp_path / "environment.json"
    for encoding in ("utf-8-sig", "utf-16"):
        file.write_text('{"gpu": "RTX 5090"}', encoding=encoding)
        assert json.loads(run(IMAGE, "--environment", file, "--json")[1])["cause"] == "build-lacks-new-arch"


@pytest.mark.parametrize("options", [["--json"], ["--no-environment"]])
def test_rows_may_be_asked_for_in_so_many_words(run, tmp_path, options):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "log": "RuntimeError: CUDA error: no kernel image is available", "environment": {}}\n')
    assert run("--jsonl", rows, *options) == run("--jsonl", rows)
