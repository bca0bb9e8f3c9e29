"""langchain's own tests of integrations (langchain-tests): ``ChatOpenAI`` and ``OpenAIEmbeddings`` on ``rung serve``.

    python -m benchmarks.server.langchain_suite --python PYTHON [--model MODEL] [--encoder ENCODER]
        [--llama-server PROGRAM]

PYTHON is an interpreter that has langchain-tests, langchain-openai and pytest-asyncio. The model is the demo unless
another one is named; calls and forms are right by grammar, whatever a model knows, but a test that counts on its
judgment may fail with a tiny one. With PROGRAM the tests of chats run with llama-server and the same model (a file),
too. The embeddings are those of ENCODER, by default of the model. Prints the tests that do not pass, and sums.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.server import parts

#: The tests, for PYTHON: what langchain calls a model that takes tools, forms and streams, and neither pictures nor
#: sound.
_SUITE = """
import os
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

SHARED = {"base_url": os.environ["RUNG_URL"] + "/v1", "api_key": "none", "model": os.environ["RUNG_MODEL"]}


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self):
        limits = {"temperature": 0, "max_tokens": 256, "frequency_penalty": 1, "max_retries": 0}
        return {**SHARED, **limits, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self):
        return {**SHARED, "check_embedding_ctx_length": False, "max_retries": 0}
"""
_OUTCOME = re.compile(r"::(Test\w+)::(\S+) (PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR)")


def outcomes(python: str, url: str, model: str, text: str, suite: str) -> tuple[list[tuple[str, str]], str]:
    """Run the tests of a class of ``text``; return the name and the outcome of each, and all that pytest wrote."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_rung.py"
        file.write_text(text)
        command = [python, "-m", "pytest", "-v", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-k", suite, file.name]
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "RUNG_URL": url, "RUNG_MODEL": model}
        options = ["-o", "asyncio_mode=auto", "-W", "ignore"]
        for each in ("test", "fixture"):  # clients are shared by tests
            options += ["-o", f"asyncio_default_{each}_loop_scope=session"]
        ran = subprocess.run(
            [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    return [(name, outcome) for _, name, outcome in _OUTCOME.findall(ran.stdout)], ran.stdout + ran.stderr


@contextlib.contextmanager
def llama_server(program: str, model: str) -> Iterator[str]:
    """Run llama-server with a model until the block ends; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threads = str(len(os.sched_getaffinity(0)))  # it would take all of the machine's, and wait for each other's
    command = [program, "-m", model, "--port", str(port), "--jinja", "-t", threads]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + parts.START_SECONDS
    try:
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def show(suite: str, who: str, found: list[tuple[str, str]], said: str, *, whole: bool) -> int:
    """Print what came of a suite; return how many tests do not pass."""
    if whole or not found:
        print(said)
    bad = [name for name, outcome in found if outcome in ("FAILED", "ERROR")]
    sums = Counter(outcome.lower() for _, outcome in found)
    print(f"{suite}, {who}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(sums.items())))
    print("".join(f"  failed {name}\n" for name in bad), end="", flush=True)
    return len(bad) + (not found)


def main() -> int:
    """Run both suites and print what came of them."""
    parser = parts.arguments(__doc__, 0)
    parser.add_argument("--python", required=True)
    parser.add_argument("--encoder", help="the model of embeddings")
    parser.add_argument("--messages", action="store_true", help="print all that pytest wrote")
    parser.add_argument("--llama-server", metavar="PROGRAM")
    options = parser.parse_args()
    failed = 0
    for suite, model in (("TestChat", options.model), ("TestEmbeddings", options.encoder or options.model)):
        with parts.serving(model, "--any-name") as server:
            url = f"http://127.0.0.1:{server.port}"
            failed += show(suite, "rung", *outcomes(options.python, url, "rung", _SUITE, suite), whole=options.messages)
    if options.llama_server:
        with llama_server(options.llama_server, options.model) as url:
            show(
                "TestChat",
                "llama-server",
                *outcomes(options.python, url, "rung", _SUITE, "TestChat"),
                whole=options.messages,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
