# `make demo` and `make test` need Python >= 3.11 and make, nothing else: both build .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two workers, and all tests of a file in one of them, so that a file's model is loaded once.
PYTEST_ARGS ?= -n 2 --dist loadfile

# Python must not put the current folder on sys.path: the root's kernels/ would pass for the hub's package of that name.
export PYTHONSAFEPATH := 1

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/ci.txt
INPUTS  := pyproject.toml setup.py constraints/ci.txt

.PHONY: demo test examples clean

demo: $(VENV)/.installed  ## fetch the small model and run the tour
	$(BIN)/palmette models pull smollm2-135m
	$(BIN)/python examples/tour.py

test: $(VENV)/.installed-dev  ## lint, types, arrows, tests
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(PYTEST_ARGS)

examples: $(VENV)/.installed  ## run every example on the small model
	@set -e; for file in examples/*.py; do echo "== $$file"; $(BIN)/python $$file; done

clean:  ## remove what make built
	rm -rf $(VENV) build dist src/*.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "palmette needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	@echo "installing palmette and torch into $(VENV) (about 1 GB, a minute or two)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	@echo "installing palmette, torch and the development tools into $(VENV) (about 1 GB, a minute or two)"
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
