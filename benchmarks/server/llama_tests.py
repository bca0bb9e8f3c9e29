"""llama.cpp's own server tests, with ``rung serve`` in the place of llama-server.

    python -m benchmarks.server.llama_tests --python PYTHON [--tests FOLDER] [--llama-server PROGRAM]
        [--model FILE.gguf] [--only test_completion.py ...] [--messages]

FOLDER is llama.cpp's tools/server/tests; without it the sdist of llama-cpp-python, which has one, is fetched by pip.
PYTHON is an interpreter that has what the tests import (their requirements.txt). Nothing of theirs is changed or kept:
an executable that they start as llama-server translates its options and runs ``rung serve`` of MODEL, by default the
demo, or of a tiny encoder where they ask for embeddings. With PROGRAM, the real llama-server, each file is also run
with that and the same two models: a test that fails there expects another model, whose words it knows, and none of
those can be judged here. Prints both outcomes of each test, the reason of those that do not apply, and the sums.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

_SDIST = "llama-cpp-python==0.3.36"
_TESTS = "vendor/llama.cpp/tools/server/tests"
_ROOT = Path(__file__).parents[2]
_DEMO = _ROOT / "src/rung/models/demo/demo.gguf"
#: Seconds that the tests of one file may take.
_FILE_SECONDS = 3600
#: Options of llama-server whose value ``rung serve`` takes under another name.
_OPTIONS = {
    "--port": "--port",
    "--host": "--host",
    "--alias": "--alias",
    "--api-key": "--key",
    "--slot-save-path": "--slot-save-path",
    "--chat-template-file": "--chat-template",
    "--cors-origins": "--origin",
    "--parallel": "--parallel",
}
#: Options of llama-server that say which model is fetched, with a value or without.
_FETCHING = {"--hf-repo": 1, "--hf-file": 1, "--model-url": 1, "--mmproj-url": 1, "--offline": 0}
#: Tokens that the demo holds.
_DEMO_CONTEXT = 512
#: Words in a repository or file of the hub that name an encoder.
_ENCODERS = ("bert", "jina", "embed")
#: Why tests do not apply to a server that is none of llama.cpp's, by a part of the name of their file or their own.
REASONS = {
    "test_router.py": "llama-server's router, its folders and presets of models",
    "test_mcp_servers.py": "an MCP client in the server",
    "test_tools_builtin.py": "tools that the server runs",
    "test_proxy.py": "a proxy for MCP",
    "test_vision_api.py": "pictures",
    "test_compat_gcp.py": "the paths of Vertex AI",
    "test_sleep.py": "its option of a sleep; --keep-alive unloads",
    "test_cors_proxy_only_forwards_explicit_proxy_headers": "a proxy for other servers",
    "test_local_media_file": "pictures",
    "test_anthropic_tool_result_with_image": "pictures",
    "test_anthropic_vision_format_accepted": "pictures",
    "test_stream.py": "llama-server's router",
    "test_cors_origins_localhost_rejects": "a foreign page gets 403 here, not an answer without CORS",
    "test_cors_origins_defaults_to_localhost_with_tools_enabled": "tools that the server runs",
    "test_access_static_assets_without_api_key": "the files of its page",
    "test_server_slots": "--no-slots: the list is on here",
    "test_metrics_disabled": "without --metrics: they are on here",
    "test_clear_and_restore": "lines of its log",
    "test_disabled_with_flag": "lines of its log",
    "test_server_multiple_addresses": "its option of several addresses",
    "test_server_model_aliases_and_tags": "its option of several names",
    "test_anthropic_empty_messages": "refused here: there is nothing to answer",
    "test_no_ui": "its option without a page",
    "test_server_props": "its option of a seed for all",
    "test_responses_stream_with_llama_telemetry": "an answer that is cut is response.incomplete here, as OpenAI has it",
    "test_apply_chat_template": "names of templates that it has built in",
    "test_verbose_debug": "the demo's template writes small letters; llama-server reads another without --jinja",
    "test_embedding_pooling_none_oai": "its option of pooling",
    "test_cors_options[origin-Access-Control-Allow-Credentials": "pages send no credentials, on purpose",
    "test_cors_options[web.mydomain.fr-Access-Control-Allow-Headers": "headers are named: * has no Authorization",
    "test_anthropic_thinking": "refused here: the model does not reason",
}


def _encodes(values: Mapping[str, str]) -> bool:
    named = f"{values.get('--hf-repo')} {values.get('--hf-file')} {values.get('--model-url')}"
    return any(word in named for word in _ENCODERS)


def serve(words: Sequence[str]) -> None:
    """Become ``rung serve`` with the options of llama-server; those that it has not are left out."""
    values = dict(zip(words, [*words[1:], ""], strict=True))
    encodes = _encodes(values)
    model = os.environ["RUNG_TEST_ENCODER" if encodes else "RUNG_TEST_MODEL"]
    command = [sys.executable, "-m", "rung", "serve", model, "--any-name"]  # llama-server looks at no name
    for theirs, ours in _OPTIONS.items():
        if theirs in values and not (encodes and theirs == "--parallel"):
            command += [ours, values[theirs]]
    if "--ctx-size" in values and not encodes:  # llama-server divides it among its slots
        context = int(values["--ctx-size"]) // int(values.get("--parallel", "1"))
        command += ["--context", str(min(context, _DEMO_CONTEXT))]
    if not encodes:  # llama-server has templates think unless it is told not to
        command += ["--no-reasoning" if values.get("--reasoning") == "off" else "--reasoning"]
    if "--cors-origins" not in values:  # llama-server lets all pages call
        command += ["--origin", "*"]
    os.execv(sys.executable, command)


def serve_peer(words: Sequence[str]) -> None:
    """Become the real llama-server with the models that are here."""
    values = dict(zip(words, [*words[1:], ""], strict=True))
    names = ("--hf-repo", "--model-url", "--model")
    needs = any(name in values for name in names)  # a router has no model
    model = os.environ["RUNG_TEST_ENCODER" if _encodes(values) else "RUNG_TEST_MODEL"]
    kept, skip = [], 0
    for each in words:
        if skip:
            skip -= 1
        elif each in _FETCHING:
            skip = _FETCHING[each]
        else:
            kept.append(each)
    program = os.environ["RUNG_TEST_PEER"]
    os.execv(program, [program, *(["--model", model] if needs and "--model" not in values else []), *kept])


def find_tests(folder: Path) -> Path:
    """Return the folder of tests in the sdist, which pip brings to ``folder``."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "-d",
        str(folder),
    ]
    subprocess.run([*command, _SDIST], check=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob(f"*/{_TESTS}"))


def run_file(
    python: str, tests: Path, name: str, environment: dict[str, str], work: Path
) -> dict[str, tuple[str, str]]:
    """Return outcome (passed, failed, error, skipped) and message of each test of a file; none where it took too
    long."""
    report = work / f"{name}.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "benchmarks.server.llama_tests_plugin"]
    command = [python, "-m", "pytest", *options, f"unit/{name}", f"--junitxml={report}"]
    try:
        with open(work / f"{name}.log", "wb") as log:
            subprocess.run(
                command, cwd=tests, env=environment, stdout=log, stderr=log, timeout=_FILE_SECONDS, check=False
            )
    except subprocess.TimeoutExpired:
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        outcome = {"failure": "failed"}.get(bad[0].tag, bad[0].tag) if bad else "passed"
        found[case.get("name", "")] = outcome, bad[0].get("message", "") if bad else ""
    return found


def verdict(file: str, test: str, ours: str, theirs: str) -> str:
    """Return the verdict on two outcomes of a test: ``passed``, ``ours`` (to mend), ``model`` (llama-server fails with
    this model, too), ``skipped``, or why it does not apply."""
    if ours == "passed":
        return "passed"
    for part, reason in REASONS.items():
        if part in (file, test.partition("[")[0]) or ("[" in part and test.startswith(part)):
            return f"does not apply: {reason}"
    if ours == "skipped":
        return "skipped"
    return "ours" if theirs in ("passed", "") else "model"


def _shim(path: Path, option: str) -> Path:
    """Write the executable that the tests start."""
    paths = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
    start = f'exec "{sys.executable}" -m benchmarks.server.llama_tests {option}'
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" {start} "$@"\n')
    path.chmod(0o755)
    return path


def main() -> int:
    """Run the tests; print outcomes."""
    modes = {"--serve": serve, "--serve-peer": serve_peer}
    if sys.argv[1:2] and (mode := modes.get(sys.argv[1])):
        mode(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tests", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--model", type=Path, default=_DEMO)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--messages", action="store_true", help="print why tests failed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run(options, Path(name))
    return 0


def run(options: argparse.Namespace, work: Path) -> None:
    """Run the files with both servers; print each as it is done."""
    from tests import tiny_encoders

    tests = options.tests or find_tests(work)
    (work / "encoder").mkdir()
    encoder = tiny_encoders.write_gguf(tiny_encoders.write(work / "encoder"), work / "encoder.gguf")
    models = {"RUNG_TEST_ENCODER": str(encoder), "RUNG_TEST_MODEL": str(options.model.resolve())}
    environment = {**os.environ, **models, "PYTHONPATH": str(_ROOT), "LLAMA_CACHE": str(work / "fetched")}
    shims = {"ours": _shim(work / "rung-serve", "--serve")}
    if options.llama_server is not None:
        environment["RUNG_TEST_PEER"] = str(options.llama_server.resolve())
        shims["theirs"] = _shim(work / "llama-server", "--serve-peer")
    totals: Counter[str] = Counter()
    for file in options.only or sorted(each.name for each in (tests / "unit").glob("test_*.py")):
        found = {
            who: run_file(options.python, tests, file, {**environment, "LLAMA_SERVER_BIN_PATH": str(shim)}, work)
            for who, shim in shims.items()
        }
        sums: Counter[str] = Counter()
        print(file, flush=True)
        for test in {**found["ours"], **found.get("theirs", {})}:
            ours, message = found["ours"].get(test, ("none", "took too long"))
            theirs, _ = found.get("theirs", {}).get(test, ("", ""))
            judged = verdict(file, test, ours, theirs)
            sums[judged.partition(":")[0]] += 1
            totals["passed there"] += theirs == "passed"
            totals["passed in both"] += ours == theirs == "passed"
            print(
                f"    {ours:8} {theirs:8} {judged:8} {test}"
                + f"\n        {message[:300]!r}" * (options.messages and ours != "passed")
            )
        totals.update(sums)
        print(f"  {file}: {dict(sums)}", flush=True)
    print(f"in all: {dict(totals)}")


if __name__ == "__main__":
    sys.exit(main())
