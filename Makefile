# Two commands: `make demo` shows Tessera at work, `make test` checks everything. Both reuse .venv on a second run.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SETUP  := pyproject.toml constraints.txt
JOBS   ?= 2
EXTRAS := train,local,milvus,dev

.PHONY: help demo test check format types tests chromium clean

help:
	@echo "make demo   install the core, index examples/photos, run three searches"
	@echo "make test   install every extra the tests need, then format, lint, types and tests"
	@echo "make clean  remove the environment and what the demo made"

$(VENV)/core: $(SETUP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(VENV)/core
	$(BIN)/python examples/demo.py

test: $(VENV)/dev chromium check tests

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One thread a process, a process a core: two processes of two threads each wait for one another instead. Tests start
# servers, browsers and processes that are killed: one that fails is run again, and listed, before it counts.
tests: $(VENV)/dev
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile --reruns 2

# The browser tests drive Debian's Chromium; where apt-get is missing or refused, they are skipped with that reason.
chromium:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && \
	  (apt-get update -qq && apt-get install -y -qq chromium) >/dev/null 2>&1; } || echo "no chromium: browser tests will be skipped"

clean:
	rm -rf $(VENV) examples/demo.tessera
