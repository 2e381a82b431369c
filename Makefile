# `make repro` and `make test` need Python 3.11+ and git. `make help` lists the targets.
# Nothing else needs make: `photofinish --help` lists the same commands.

PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
SHELL := /bin/bash
.DEFAULT_GOAL := help
photofinish := python -m photofinish
UV_VERSION := 0.13.9
uv := VIRTUAL_ENV=.venv $(BIN)/uv pip

.PHONY: help setup repro plan new reference ui machine worker spread test bench format lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18

setup: .venv/installed ## create .venv with the pinned packages

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
		exit 1; }
	@echo "Installing into .venv: PyTorch and the rest, about 6 GB, some minutes the first time"
	@# uv installs in a third of pip's time.
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@# Compiled here, as else the first training's start-up would do so.
	$(uv) install --quiet --compile-bytecode -r requirements.lock
	$(uv) install --quiet --no-deps --no-build-isolation --editable .
	@# MLflow's telemetry is switched off by a variable only: set it for every Python of this .venv.
	@$(BIN)/python -c "import pathlib, sysconfig; \
		pathlib.Path(sysconfig.get_path('purelib'), 'photofinish-no-telemetry.pth').write_text( \
		\"import os; os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')\n\")"
	@touch $@

repro: setup ## run the pipeline; only what changed runs again (EXAMPLE=mnist-linear: copy that example first)
	@$(photofinish) run $(if $(EXAMPLE),--example $(EXAMPLE))

plan: setup ## read params.yaml; `dvc status` then lists what will run
	@$(photofinish) plan

new: setup ## start a custom network: write my_model.py and print what goes into params.yaml (FILE=net.py: another name)
	@$(photofinish) new $(FILE)

ui: setup ## bring MLflow up to date and start its UI (PORT=5001 instead of 5000)
	@$(photofinish) ui $(if $(PORT),--port $(PORT))

reference: setup ## record this machine's results in reference/ for others (MACHINE=name: the folder's name)
	@$(photofinish) reference $(if $(MACHINE),--machine $(MACHINE))

machine: setup ## record this machine's facts, for params.yaml to name (NAME=lab: machines/lab.json)
	@$(photofinish) machine $(NAME)

worker: setup ## train here for a head (HEAD=tcp://head:8786; by default on this machine)
	@$(photofinish) worker $(HEAD)

spread: setup ## train missing results on all machines at once (LISTEN=tcp://0.0.0.0:8786)
	@$(photofinish) spread $(if $(LISTEN),--listen $(LISTEN))

test: setup ## the whole check: lint, format, types, tests
	ruff check .
	ruff format --check .
	@# mypy uses one core, so it runs beside the tests.
	mypy & types=$$!; \
		pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder; tests=$$?; \
		wait $$types || { echo "error: mypy failed, see above"; exit 1; }; exit $$tests

bench: setup ## time the trainer beside other loops (minutes, on a quiet machine; QUICK=1: see that it runs)
	python -m benchmarks $(if $(QUICK),--quick)

format: setup ## format the code
	ruff check --fix .
	ruff format .

lock: setup ## update requirements.lock from pyproject.toml
	$(uv) compile --universal --python-version 3.11 --extra pipeline --group dev pyproject.toml \
		--output-file requirements.lock

clean: ## remove everything that was made, except the environment
	rm -rf data results report metrics plots dvc.lock mlruns mlflow.db .photofinish .dvc/cache .dvc/tmp
