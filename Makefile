# `make test` and `make demo` set up everything they need in .venv.

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: setup test demo lint docs format clean

setup: .venv/ready

# Rebuilt when what is to be installed changes; `-e` keeps the checkout importable. Few of the installed modules are
# ever imported, so they are compiled when they are.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trajstitch needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch .venv/ready

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

demo: setup
	$(BIN)/trajstitch demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache
