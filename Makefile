# make lab     the environment, and JupyterLab on the quickstart
# make test    the environment with everything tests need, then lint, types and tests: what CI runs
# make test-all  the same with more random cases, and the whole matrix: every op, dtype, layout and scheduler compiled
# make test-torch-oldest  the tests of the bridge with the oldest torch that is supported, in an environment of its own
#              (the only wheel of it brings CUDA libraries, 5 GB in all)
# make test-mlir  CUDA kernels compiled with numba-cuda-mlir, which CI does not install, in an environment of its own
# make check   lint and types only
# make pages   the documentation site in site/, with every lesson executed: open site/index.html
# make scripts the scripts of the explorer from the modules in widgets/js; needs Node and npm
# make fuzz    random definitions over all ops, computed in every way and compared; failures are shrunk and printed;
#              then random programs, and random functions through the bridge, against torch (where it is installed), then
#              mutated templates of real programs, and random graphs cut by random schedulers
#
# PYTHON=python3.12          the interpreter that makes the environment (any 3.11 or newer)
# LAB_ARGS="--no-browser"    more arguments for JupyterLab
# PYTEST_ARGS="-k softmax"   more arguments for pytest
# UNTIMED=1                  leaves out the tests that assert times
# N=20000 SEED=17            how many definitions make fuzz checks, and which
# PROGRAMS=50000             how many programs make fuzz compares with torch
# CASES=20000                how many mutated templates of real programs make fuzz checks
# FUNCTIONS=3000             how many functions of torch make fuzz takes through the bridge
# GRAPHS=100000              how many graphs make fuzz cuts

PYTHON ?= python3
LAB_ARGS ?=
PYTEST_ARGS ?=
UNTIMED ?=
N ?= 2000
SEED ?= 17
PROGRAMS ?= 2000
CASES ?= 1000
FUNCTIONS ?= 200
GRAPHS ?= 100000

VENV := .venv
PY := $(VENV)/bin/python
INSTALL = $(PY) -m pip install --quiet --disable-pip-version-check
LAB_READY := $(VENV)/ready-lab
TEST_READY := $(VENV)/ready-test
NOTEBOOK := notebooks/00_quickstart.ipynb

.DEFAULT_GOAL := help
.PHONY: help lab test test-all test-torch-oldest test-mlir pytest check collected fuzz pages scripts browser

# Some containers set it. Hundreds of processes that tests start would then compile every module that they import.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

# JupyterLab asks about news in a popup over the notebook, unless the environment's settings have answered.
LAB_SETTINGS := $(VENV)/share/jupyter/lab/settings

lab: $(LAB_READY)
	@mkdir -p $(LAB_SETTINGS)
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' \
	  > $(LAB_SETTINGS)/overrides.json
	@# JupyterLab draws the pictures of a saved notebook only if it is trusted.
	@$(PY) -m nbformat.sign notebooks/*.ipynb > /dev/null 2>&1 || true
	$(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) \
	  --LabApp.news_url=None --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  --LabApp.extension_manager=readonly --LabApp.default_url=/lab/tree/$(NOTEBOOK) $(LAB_ARGS)

# While mypy runs on one core, modules of tests are compiled, and a browser is downloaded where there is none.
test:
	@$(MAKE) --no-print-directory -j 3 check browser $(if $(PYTEST_ARGS),,collected)
	@$(MAKE) --no-print-directory pytest

# One more than there are cores: tests in a browser wait most of the time.
WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
SHARED = "not (benchmark or matrix)"

# What asserts times runs alone, after everything else has been shared among the cores.
pytest: $(TEST_READY)
ifeq "$(PYTEST_ARGS)" ""
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m $(SHARED)
	$(if $(UNTIMED),,$(PY) -m pytest -m benchmark)
else
	$(PY) -m pytest $(PYTEST_ARGS)
endif

test-all: export FUSER_LAB_THOROUGH = 1
test-all: test
	$(PY) -m pytest -n auto --dist worksteal -m matrix

test-torch-oldest: VENV := .venv-torch-oldest
test-torch-oldest:
	@$(MAKE) --no-print-directory VENV=$(VENV) $(VENV)/ready-test
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.6.0'
	$(VENV)/bin/python -m pytest -n auto tests/bridge -m $(SHARED)

test-mlir: VENV := .venv-mlir
test-mlir:
	@$(MAKE) --no-print-directory VENV=$(VENV) $(VENV)/ready-test
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[cuda-mlir]'
	$(VENV)/bin/python -m pytest -n auto -m mlir
	FUSER_LAB_CUDA_COMPILER=mlir $(VENV)/bin/python -m pytest -n auto -m "ptx and not (mlir or matrix)"

# pytest rewrites the assertions of each module that it imports. Processes that begin together would each do so.
collected: $(TEST_READY)
	@$(PY) -m pytest -qq --collect-only -m $(SHARED) > $(VENV)/collected || { cat $(VENV)/collected; false; }

check: $(TEST_READY)
	$(PY) -m ruff check .
	$(PY) -m mypy

fuzz: $(TEST_READY)
	$(PY) -m tests.fuzz --count $(N) --seed $(SEED)
	@if $(PY) -c 'import torch' 2>/dev/null; then \
	  echo "$(PY) -m tests.programs --count $(PROGRAMS) --seed $(SEED)"; \
	  $(PY) -m tests.programs --count $(PROGRAMS) --seed $(SEED) && \
	  echo "$(PY) -m tests.bridge.random_functions --count $(FUNCTIONS) --seed $(SEED)" && \
	  $(PY) -m tests.bridge.random_functions --count $(FUNCTIONS) --seed $(SEED); \
	else echo "Programs are not compared with torch: it is not installed ($(PY) -m pip install torch)."; fi
	$(PY) -m tests.templates --count $(CASES) --seed $(SEED)
	$(PY) -m tests.fuzz_segmentation --count $(GRAPHS) --seed $(SEED)

pages: $(TEST_READY)
	rm -rf site
	$(PY) -m sphinx -q -E -W --keep-going -d $(VENV)/doctrees -c docs . site
	@echo "site/index.html"

scripts:
	cd widgets/js && npm ci --silent --no-audit --no-fund && node build.mjs $(BUILD_ARGS)

browser: $(TEST_READY)
	@$(PY) tests/browser_path.py --install

# An environment remembers the directory that it was made in: a copied or moved checkout makes its own again.
ifneq "$(shell cat $(VENV)/made-in 2>/dev/null)" "$(CURDIR)"
.PHONY: $(LAB_READY) $(TEST_READY)
endif

define make_environment
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "fuser_lab needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3" >&2; exit 1; }
@{ $(PY) -m pip --version || $(PY) -m ensurepip; } >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
$(INSTALL) --editable '.[$(1)]'
@printf '%s\n' "$$PWD" > $(VENV)/made-in
endef

$(LAB_READY): pyproject.toml
	$(call make_environment,notebook)
	@touch $@

$(TEST_READY): pyproject.toml
	$(call make_environment,dev$(comma)cuda)
	@touch $(LAB_READY) $@

comma := ,
