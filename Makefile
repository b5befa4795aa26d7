# Everything a newcomer needs: `make demo`, `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One worker a core, two at most: the tests start processes of their own.
WORKERS ?= 2

.PHONY: demo test test-long test-gpu lint format clean help

help: ## List what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Arachne needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV) (the first time this fetches PyTorch)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[test]'
	@touch $@

demo: $(INSTALLED) ## Profile this host, plan, run the plan, compare with the prediction, write a page
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh demo

test: $(INSTALLED) ## The tests: under 15 minutes on 2 cores
	$(BIN)/python -m pytest -n $(WORKERS)

test-long: $(INSTALLED) ## The tests that take minutes each
	$(BIN)/python -m pytest -m long -n $(WORKERS) --timeout 900

test-gpu: $(INSTALLED) ## The tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

lint: $(INSTALLED) ## ruff, mypy --strict, and whether tables and migrations agree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/alembic -c migrations/alembic.ini check

format: $(INSTALLED) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what make made
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
