"""Test that commands name what a log names: the script, the package, the model, the file, the program."""

import re

import pytest

from rung.diagnosis.explain import explain, scene
from rung.diagnosis.fixes.wording import Speaker, wordings
from rung.diagnosis.logs.mentions import mentions_of
from rung.diagnosis.tables import tables


def traceback(*paths):
    return [f'  File "{path}", line 3, in main' for path in paths]


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (["$ python scripts/run.py --variant=2b --prompt='a b'"], "python scripts/run.py --variant=2b '--prompt=a b'"),
        (["(venv) me@box:~/x$ python3.11 -u train.py --bf16 | tee log"], "python -u train.py --bf16"),
        (["user@host:/srv# torchrun train.py --n 2"], "torchrun train.py --n 2"),
        ([r"PS C:\ai> python train.py --fast"], "python train.py --fast"),
        ([r"C:\ai>python.exe .\train.py"], r"python .\train.py"),
        (["python -m package.train --x 1"], "python -m package.train --x 1"),
        (["I ran python train.py and it failed"], "python train.py"),
        (["$ python train.py; rm -rf /"], "python train.py"),
        (["$ python train.py $(rm -rf /)"], "python train.py"),
        (["$ python train.py `rm x` > /dev/sda"], "python train.py"),
        (["$ python train.py 'x"], "python train.py ''\"'\"'x'"),
        (
            traceback("/usr/lib/python3.11/runpy.py", "/home/me/a b/train.py", "/x/lib.py"),
            "python '/home/me/a b/train.py'",
        ),
        (traceback("/x/site-packages/torch/nn/modules.py", "sample/t2v.py"), "python sample/t2v.py"),
        (traceback("/x/site-packages/torch/nn/modules.py", "<frozen runpy>", "/tmp/ipykernel_1/2.py"), ""),
        (["python is a language, as train.cpp shows"], ""),
    ],
)
def test_the_command_is_what_was_typed_and_nothing_that_a_shell_would_read(lines, command):
    assert mentions_of(lines).command == command


@pytest.mark.parametrize(
    ("lines", "module", "library"),
    [
        (traceback("/x/site-packages/peft/a.py", "/x/site-packages/bitsandbytes/b.py"), "bitsandbytes", "bitsandbytes"),
        (traceback("/x/site-packages/diffusers/a.py", "/x/dist-packages/torch/b.py"), "diffusers", "diffusers"),
        ([r'Error loading "C:\v\Lib\site-packages\torch\lib\fbgemm.dll"'], "torch", "torch"),
        (traceback("/x/site-packages/somebodys_own/a.py"), "somebodys_own", ""),
        (["diff_gaussian_rasterization/__init__.py line 95"], "diff_gaussian_rasterization", ""),
        (
            ["at /home/u/.cargo/registry/src/index.crates.io-6f17d22bba15001f/burn-fusion-0.13.2/src/x.rs:3"],
            "burn-fusion",
            "",
        ),
        (traceback("train.py"), "", ""),
    ],
)
def test_the_package_is_the_one_that_raised_and_pip_is_given_only_names_that_are_certain(lines, module, library):
    found = mentions_of(lines)
    assert (found.module, found.library) == (module, library)


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve mistralai/Mistral-7B-v0.1 --dtype bfloat16", "mistralai/Mistral-7B-v0.1"),
        ('AutoModel.from_pretrained("google/gemma-2b", dtype=x)', "google/gemma-2b"),
        ("--model_name_or_path meta-llama/Llama-2-7b-hf --bf16", "meta-llama/Llama-2-7b-hf"),
        ("https://huggingface.co/Qwen/Qwen2.5-7B/resolve/main/config.json", "Qwen/Qwen2.5-7B"),
        ("/root/.cache/huggingface/hub/models--google--gemma-2b/snapshots/1/x", "google/gemma-2b"),
        ("ollama run llama3.1:8b", "llama3.1:8b"),
        ("Loading llama-3.1-8b ...", "llama-3.1-8b"),
        ("gemma/run.py --variant=2b", "gemma-2b"),
        ("see https://huggingface.co/docs/transformers", ""),
        ("--model ./outputs/mine", ""),
        ("/home/me/llama-7b/x.py", ""),
    ],
)
def test_the_model_is_the_one_that_is_loaded(line, model):
    assert mentions_of([line]).model == model


def test_files_and_programs():
    found = mentions_of([r"C:\ai> .\llamafile-0.8.1.exe -m D:\m\mistral.Q4_0.gguf -ngl 99"])
    assert (found.executable, found.file) == (r".\llamafile-0.8.1.exe", r"D:\m\mistral.Q4_0.gguf")
    found = mentions_of(["./llava-v1.5-7b-q4.llamafile --server -ngl 1000"])
    assert (found.executable, found.file) == ("./llava-v1.5-7b-q4.llamafile", "")
    assert mentions_of(["llamafile failed: llamafile is no file"]).executable == ""


MISSING = "CUDA kernel vec_dot_q8_0_q8_1_impl has no device code compatible with CUDA arch 610. compiled for: 500,600"


def test_commands_name_what_the_log_names():
    typed = r"C:\ai> .\llamafile-0.8.1.exe -m mistral.Q4_0.gguf -ngl 99"
    found = explain(f"{typed}\nggml-cuda.cu:1412: ERROR: {MISSING}", {"gpu": "Quadro P2200"})
    assert found.fixes[0].command == r".\llamafile-0.8.1.exe -m mistral.Q4_0.gguf -ngl 99 --gpu nvidia --recompile"
    assert "Visual Studio" in found.fixes[0].text
    assert [fix.command for fix in found.repairs] == ["rung run mistral.Q4_0.gguf"]
    said = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"
    found = explain(f"$ python run.py --model google/gemma-2b\n{said}", {"gpu": "Quadro P2200"})
    assert [fix.command for fix in found.repairs] == [
        "rung run google/gemma-2b",
        "rung exec -- python run.py --model google/gemma-2b",
    ]
    vague = explain(said, {"gpu": "Quadro P2200"}).repairs
    assert [fix.command for fix in vague] == [None]


def test_no_command_holds_a_name_in_capitals_and_no_text_a_hole():
    capitals = re.compile(r"\b(?:PACKAGE|MODEL|FILE|IMAGE|PROGRAM|JOB|AUDIO|ORG/REPO|MODEL_FOLDER)\b")
    for row in (*wordings(), *wordings("tell")):
        assert not capitals.search(f"{row.command or ''} {row.text}"), row
    for row in tables()["cause"]:
        assert not capitals.search(row["tell"]), row
    speaker = Speaker(scene([b"it failed"]), "software-defect")
    for label in {row.label for row in wordings()}:
        fix = speaker.fix(label)
        assert "{" not in fix.text
        assert "{" not in (fix.command or "")


def test_names_that_come_late_in_a_long_log_are_known():
    noise = "".join(f"step {'abcdefghij'[n % 10]} of {n}\n" for n in range(2_000))
    log = f"{noise}$ python late.py\n{noise}RuntimeError: CUDA error: no kernel image is available for execution"
    assert scene([log.encode()]).mentions.command == "python late.py"
