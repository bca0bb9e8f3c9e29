"""The page of a fleet in a browser, beside a fleet whose state a test can foresee."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request

import msgspec
import pytest
import uvicorn

from rung.fleet import page
from rung.fleet.messages import (
    DeviceReport,
    Failure,
    FleetStatus,
    ModelStatus,
    NodeLog,
    NodeReport,
    NodeStatus,
    RatesReport,
    ServedModel,
    Versions,
)
from rung.server import page_files
from rung.server.app import App
from rung.server.gate import Gate
from tests.server.page.test_access import CONTRASTS, NAMELESS


def _node(name: str, state: str, *models: ModelStatus) -> NodeStatus:
    device = DeviceReport("cpu", "Xeon <b>E5</b>", 64_000_000_000, 48_000_000_000, 4e10)
    return NodeStatus(NodeReport(name, "10.0.0.1", "cpu-avx2", 16, [device]), state, list(models))


_RATES = RatesReport(512.0, 20.0, 55.5, 25.0)
_STEP = "linear from triton.fused to numba.row on cuda:0: It was lost."
_LOG = NodeLog("Traceback\n<script>window.hit = 1</script>", "Almost certainly: no room", [("free it", "rm -r cache")])


def _status() -> FleetStatus:
    small = ModelStatus("small", "ready", "q4_0", 2_000_000_000, 4096, 8, 3, _RATES, 0.5, steps=[_STEP])
    large = [
        ModelStatus("large", "ready", "q8_0", 5_000_000_000, 512, 4, 0, _RATES, layers="layers 0 to 9"),
        ModelStatus("large", "ready", memory=4_000_000_000, layers="layers 10 to 19"),
    ]
    nodes = [_node("old", "up", small, large[1]), _node("new", "up", large[0]), _node("night", "lost")]
    failures = [Failure("night", "small", 1_790_000_000.0, "The process with small ended.", _LOG)]
    served = [ServedModel("small", {}, 7), ServedModel("large", {})]
    return FleetStatus("http://127.0.0.1:8080", "", Versions("", "", ""), nodes, 7, served, failures)


class FakeFleet:
    """A fleet of which a test says the state, and the real application and gate around its page."""

    def __init__(self) -> None:
        self.now = _status()
        self.app = App(None, Gate(), (*page_files.ENDPOINTS, *page.endpoints(self)))
        config = uvicorn.Config(self.app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/fleet"

    def status(self) -> FleetStatus:
        return self.now

    def need_key(self, key: str) -> None:
        self.app._gate = Gate((key,))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def fake():
    found = FakeFleet()
    yield found
    found.stop()


@pytest.fixture
def tab(browser, fake):
    with browser.tab(fake.url) as found:
        yield found
        assert found.expects_problems or found.problems == []
        assert [url for url in found.requests if not url.startswith(fake.url.removesuffix("fleet"))] == []


def test_who_does_what_and_how_fast(tab):
    tab.wait_text("2 of 3 nodes up, 3 answers computed, 7 requests in the queue")
    text = tab.text()
    assert "In the queue: small 7" in text
    assert "large is divided: layers 0 to 9 on new, layers 10 to 19 on old" in text
    for words in ("3 of 8 answers", "20 tokens/s alone, predicted 25 (80%)", "56 tokens/s measured", "50% of what"):
        assert words in text
    assert "Xeon <b>E5</b>, 48.0 GB free" in text
    meter = tab.js("[...document.querySelectorAll('meter')].map((one) => [one.value, one.max])")
    assert meter == [[3, 8], [0, 4]]
    tab.click("1 step down")
    tab.wait_text(_STEP)


def test_what_failed_has_its_log_and_what_explain_says_of_it(tab):
    tab.wait_text("The process with small ended.")
    tab.js("document.querySelector('.failure summary').click()")
    for words in ("Almost certainly: no room", "free it", "rm -r cache", "<script>window.hit = 1</script>"):
        tab.wait_text(words)
    assert tab.js("window.hit ?? null") is None


def test_the_page_follows_the_fleet_and_says_when_nobody_answers(tab, fake):
    tab.wait_text("2 of 3 nodes up")
    fake.now = msgspec.structs.replace(fake.now, nodes=fake.now.nodes[:1], failures=[], waiting=0)
    tab.wait_text("1 of 1 node up, 3 answers computed, 0 requests in the queue")
    tab.wait_text("Nothing since the head began.")
    tab.expects_problems = True
    fake.stop()
    tab.wait_text("Is “rung fleet up” still running?")
    assert "1 of 1 node up" in tab.text()


def test_the_state_needs_the_key_and_the_page_does_not(fake):
    fake.need_key("word")
    assert urllib.request.urlopen(fake.url, timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(fake.url + "/status", timeout=10)
    assert refused.value.code == 401


def test_the_state_is_for_who_has_the_key(browser, fake):
    fake.need_key("word")
    with browser.tab(fake.url) as tab:
        tab.wait_text("The server asks for a key")
        assert "Xeon" not in tab.text()
        tab.type("word")
        tab.press("Enter")
        tab.wait_text("2 of 3 nodes up")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_by_everybody(browser, fake, dark):
    with browser.tab(fake.url, 320, 640, dark) as tab:
        tab.wait_text("2 of 3 nodes up")
        tab.js("document.querySelectorAll('summary').forEach((one) => one.click())")
        tab.wait_text("rm -r cache")
        assert [pair for pair in tab.js(CONTRASTS) if pair[1] < 4.5] == []
        assert tab.js(NAMELESS) == []
        assert tab.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_other_hosts_and_pages_get_nothing(fake):
    import urllib.error
    import urllib.request

    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        for path in ("", "/status"):
            request = urllib.request.Request(fake.url + path, headers=headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            assert refused.value.code == 403
            assert json.load(refused.value)["error"]["code"] in ("host_not_allowed", "origin_not_allowed")


def test_a_log_is_explained_and_cut():
    pytest.importorskip("ray")
    from rung.fleet.replica import explained

    error = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = explained("line\n" * 10_000 + error, "The engine ended.", {})
    assert "memory" in found.answer
    assert found.fixes
    assert found.log.endswith(error)
    assert len(found.log) < 10_000
