# make demo: train a small translator in minutes and use it.   make test: the tests of minutes (make test-system, make test-stress: the others).   make check: format, lint, types.
# make docs: the site, in build/docs/html.   make notebooks: execute the tutorials (make notebooks TUTORIALS=blog: one of them).   make evidence: for some minutes, the next runs that show what is claimed.
# make weights GPT2=DIR BERT=DIR ...: measure published weights that you have (make weights lists what each row needs).   make image: the service, in a container.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
STAMP := .venv/installed
SITE := build/docs
# of make evidence: how long, on what, in which folder, how many runs side by side, and the folder of all data sets
MINUTES ?= 9
DEVICE ?= cpu
RUNS ?= runs/evidence
AT_ONCE ?= 1
# of make image: what builds it, the first of these that answers, and its name
BUILDER ?= $(shell for b in docker podman buildah; do $$b info >/dev/null 2>&1 && { echo $$b; break; }; done)
IMAGE ?= manyheads

.PHONY: demo test test-system test-stress test-processors check check-changed format results evidence weights notebooks docs image clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	@bash scripts/demo.sh

# tests of one file may share fixtures, so that one of the two processes runs them all
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope

test: $(STAMP)-dev
	$(PYTEST) tests/unit tests/contracts

test-system: $(STAMP)-dev
	$(PYTEST) --no-loadscope-reorder tests/system

test-stress: $(STAMP)-dev
	$(BIN)/python -m pytest -m 'slow or stress' --timeout 3600 tests

COMPUTING := $(foreach package,core models generation training tasks,$(wildcard tests/unit/$(package) tests/contracts/$(package)))

# what computes is tested again as if the processor were a lesser one, which rounds and orders sums in other ways
KINDS := "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41" ONEDNN_MAX_CPU_ISA=AVX512_CORE
ifneq ($(shell grep -sw -m1 avx2 /proc/cpuinfo),)
KINDS += "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"
endif

test-processors: $(STAMP)-dev
	@for kind in $(KINDS); do echo "make: $$kind" >&2; \
	  env $$kind $(BIN)/python -m pytest $(COMPUTING) || exit 1; done

check: $(STAMP)-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_prose.py manyheads papers tests benchmarks lab/*.py lab/evidence scripts docs README.md CONTRIBUTING.md

# the same for the files that differ from the last commit; the type checker reads what its cache lacks
check-changed: CHANGED = $(shell git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard)
check-changed: $(STAMP)-dev
	$(BIN)/ruff format --check --force-exclude $(filter %.py,$(CHANGED)) /dev/null
	$(BIN)/ruff check --force-exclude $(filter %.py,$(CHANGED)) /dev/null
	$(BIN)/mypy
	$(BIN)/python scripts/check_prose.py $(filter %.py %.md,$(CHANGED))

format: $(STAMP)-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

results: $(STAMP)-dev
	$(BIN)/python -m lab.results_table
	$(BIN)/python -m lab.best_results
	$(BIN)/python -m lab.tutorial_extract

evidence: $(STAMP)-dev
	@exec $(BIN)/python -m lab.evidence --minutes $(MINUTES) --device $(DEVICE) --runs $(RUNS) --at-once $(AT_ONCE) $(DATA:%=--data %) $(if $(ONLY),--only $(ONLY))

# variables of the command line are the arguments, so that a mistyped one is reported
weights: $(STAMP)-dev
	@$(BIN)/python -m lab.weights $(filter-out PYTHON=%,$(MAKEOVERRIDES)) && $(BIN)/python -m lab.results_table

notebooks: $(STAMP)-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.build_notebooks $(TUTORIALS)
	$(BIN)/python -m lab.figures_page

docs: $(STAMP)-docs
	@rm -rf $(SITE)/html $(SITE)/doctrees
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d $(SITE)/doctrees docs $(SITE)/html
	$(BIN)/python -m scripts.check_site $(SITE)/html

image:
	@test -n "$(BUILDER)" || { echo "make: an image needs docker (with its daemon), podman or buildah" >&2; exit 2; }
	BUILDAH_FORMAT=docker $(BUILDER) build --file deploy/Dockerfile --tag $(IMAGE) .

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
	find manyheads benchmarks lab scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# what `make demo` needs; pip first says which build of PyTorch it installs
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11, 3.12 or 3.13 on the PATH (or make PYTHON=/path/to/python3.11 ...)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "make: $(PYTHON) has no venv module (on Debian: apt-get install $(PYTHON)-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python scripts/announce_install.py requirements.lock
	$(PIP) -r requirements.lock
	$(PIP) --no-deps --editable .
	@touch $@

# what the tests and checks need in addition
$(STAMP)-dev: $(STAMP) requirements-dev.lock requirements-nodeps.lock
	@echo "make: installing requirements-dev.lock into .venv" >&2
	$(PIP) -r requirements.lock -r requirements-dev.lock
	$(PIP) --no-deps -r requirements-nodeps.lock
	@touch $@

$(STAMP)-docs: $(STAMP)-dev requirements-docs.lock
	@echo "make: installing requirements-docs.lock into .venv" >&2
	$(PIP) -c requirements.lock -c requirements-dev.lock -r requirements-docs.lock
	@touch $@
