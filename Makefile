# Every target makes or reuses .venv and installs what it needs; nothing but Python 3.11 has to be there.
# A stamp says what is installed and grows old when pyproject.toml changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests wait for disks, processes and clocks more than they compute: a few at once, even on two cores.
AT_ONCE ?= 3
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format bench prove clean

help:  ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

demo: $(VENV)/.core  ## several processes, one killed, nothing lost: under a minute
	$(BIN)/python examples/demo.py

test: lint  ## lint, then every test, docstring and documented example
	$(BIN)/python -m pytest -q -n $(AT_ONCE)

lint: $(VENV)/.dev  ## ruff, mypy --strict, and the direction of the imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## measure, print a table, keep JSON, draw a plot
	$(BIN)/python -m bench

prove: $(VENV)/.dev  ## the long runs that hunt for lost messages
	HYPOTHESIS_PROFILE=prove $(BIN)/python -m pytest -q -m prove --timeout=3600

clean:  ## remove .venv and everything that was built or cached
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[bench]'
	@touch $@ $(VENV)/.core

# Debian splits ensurepip from Python: without python3-venv a plain `python3 -m venv` fails, so the environment
# is made without pip and filled by a pip or virtualenv from outside, if there is one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Heliograph needs Python 3.11 or newer; $(PYTHON) is older or missing. Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { rm -rf $(VENV); $(PYTHON) -m virtualenv --quiet $(VENV) 2>/dev/null; } \
	  || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV)/bin/python install --quiet pip 2>/dev/null; } \
	  || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment with pip. On Debian: apt-get install python3-venv" >&2; exit 1; }
