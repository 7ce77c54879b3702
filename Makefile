# The words of the house; CI calls the same ones.
PYTHON ?= python3
BIN := .venv/bin
export PYTHON

.PHONY: help setup check test test-unit test-machine test-all demo bench docs lock format dist clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## .venv with the locked tools and aenv itself
	@scripts/setup

check: setup  ## format, lint, types, import rules, spelling, locks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python scripts/locks.py

test: setup  ## the tests that need nothing but Python
	$(BIN)/python -m pytest tests/unit tests/integration tests/e2e tests/docs

test-unit: setup  ## the quick ones
	$(BIN)/python -m pytest tests/unit

test-machine: setup  ## the walls of sandboxes and kill -9 of everything; minutes, and best as root
	$(BIN)/python -m pytest tests/machine

test-all: setup  ## every suite, with real parts from PyPI, npm and Debian
	$(BIN)/python -m pytest tests

demo: setup  ## author, run, call and reward an environment, and print what happened
	@$(BIN)/python examples/demo.py

bench: setup  ## every benchmark; one JSON line each
	@for script in bench/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

docs: setup  ## regenerate the reference, build the site
	$(BIN)/python scripts/reference.py
	@scripts/docs

lock:  ## resolve anew: uv.lock and the requirements file that pip reads
	UV_SYSTEM_CERTS=$${UV_SYSTEM_CERTS:-true} uv lock
	uv export --quiet --frozen --no-hashes --no-emit-project --group dev --output-file requirements-dev.txt

format: setup  ## rewrite the code in house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: setup  ## wheel and sdist in dist/
	$(BIN)/uv build

clean:  ## everything that make made
	rm -rf .venv .bootstrap .cache dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
