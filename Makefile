# The commands of a working copy. Each creates what it needs; a second run finds it and is instant.

PYTHON ?= python3
VENV ?= .venv
TORCH_VENV ?= .venv-torch
SGLANG_VENV ?= .venv-sglang
VLLM_VENV ?= .venv-vllm
JOBS ?= 2
# Ordinary pytest arguments: make test ARGS="tests/remote -k lock"
ARGS ?=
VERSIONS ?=

BIN := $(VENV)/bin
TORCH_BIN := $(TORCH_VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check

# The newest torch with wheels for Python 3.11 to 3.13 whose CPU build was tried. Pinned, because an unpinned torch
# resolves to the newest CUDA build and pulls gigabytes; to be sure of the CPU build, let PIP_EXTRA_INDEX_URL name the
# index of CPU wheels.
TORCH := torch==2.13.0
TRANSFORMERS := transformers>=4.51,<6
# Reads the datasets in which speculators keeps its loss masks.
PYARROW := pyarrow>=17
# Its own check of a cached file, beside which ours stands; without the libraries that only its training needs.
SPECULATORS := speculators==0.9.0

# Numeric threads are of no use at these sizes and starve the other worker.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch test-engines test-py39 lint format bench drift screenshots clean python-new-enough

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-app  ## the app on the embedded host: no GPU, no server, no torch
	$(BIN)/console demo

test: $(VENV)/.stamp-test  ## the default suite
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-torch: $(TORCH_VENV)/.stamp  ## the tests that compare with torch and transformers
	$(TORCH_BIN)/python -m pytest -m torch $(ARGS)

test-engines: $(VENV)/.stamp-test $(SGLANG_VENV)/.stamp $(VLLM_VENV)/.stamp  ## the tests on SGLang and vLLM themselves
	SGLANG_PYTHON=$(abspath $(SGLANG_VENV))/bin/python VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python \
		$(BIN)/python -m pytest -m engines $(ARGS)

test-py39: $(VENV)/.stamp-test  ## checks as the host runs it, under Python 3.9 (PYTHON39=PATH names one)
	$(BIN)/python -m tests.repo.oldest_python $(PYTHON39)

lint: $(VENV)/.stamp-test  ## style, types, import contracts, oldest Python, rules of the tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/vermin --quiet --no-tips --violations --target=3.9- checks $(wildcard remote/on_host)
	$(BIN)/python -m tests.repo.rules

format: $(VENV)/.stamp-test  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.stamp-test  ## start-up and check times as ratios to bare python
	$(BIN)/python -m tests.benchmarks $(ARGS)

drift: $(VENV)/.stamp-test  ## released engines against our tables (VERSIONS="0.5.22 0.5.23"; default: the newest)
	$(BIN)/python -m tests.drift $(VERSIONS)

screenshots: $(VENV)/.stamp-test  ## every screen at three sizes, from a live demo, into docs/
	$(BIN)/python -m tests.console.screenshots $(ARGS)

clean:  ## remove environments, caches and build outputs
	rm -rf .venv .venv-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python-new-enough:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: console needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "      Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }

# The stamps are files, so that make sees at once that nothing is to be done; the check of the interpreter is
# order-only, so that it never makes a stamp old.
$(VENV)/.stamp-venv: | python-new-enough
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-app: pyproject.toml $(VENV)/.stamp-venv
	$(BIN)/python $(PIP) --editable .
	@touch $@

$(VENV)/.stamp-test: pyproject.toml $(VENV)/.stamp-venv
	$(BIN)/python $(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.stamp-app

$(TORCH_VENV)/.stamp: pyproject.toml | python-new-enough
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_BIN)/python $(PIP) '$(TORCH)' '$(TRANSFORMERS)' '$(PYARROW)' --editable '.[test]'
	$(TORCH_BIN)/python $(PIP) --no-deps '$(SPECULATORS)'
	@touch $@

# A half-made environment has no stamp: the next run mends it, and until then make says what pip could not get.
$(SGLANG_VENV)/.stamp: $(addprefix tests/engines/requirements-,sglang.txt sglang-alone.txt) | python-new-enough
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python $(PIP) --requirement tests/engines/requirements-sglang.txt || $(NO_ENGINE)
	$(SGLANG_VENV)/bin/python $(PIP) --no-deps --requirement tests/engines/requirements-sglang-alone.txt || $(NO_ENGINE)
	$(SGLANG_VENV)/bin/python tests/engines/shim/without_gpu.py
	@touch $@

# What vLLM installs for images and sound is built for CUDA and does not load beside torch for the CPU; nothing uses it.
$(VLLM_VENV)/.stamp: tests/engines/requirements-vllm.txt | python-new-enough
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python $(PIP) --requirement tests/engines/requirements-vllm.txt || $(NO_ENGINE)
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

NO_ENGINE = { echo "make: the packages of an engine could not be had (pip says why), so nothing was tested on it" >&2; exit 2; }
