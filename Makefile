# `make repro` and `make test` need Python 3.11+ and git. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
SHELL := /bin/bash
.DEFAULT_GOAL := help
# DVC reads params.yaml before `plan` can check it, so check it here first.
# Without Git (a ZIP), DVC needs core.no_scm.
ready = @python stages/plan.py && \
	{ git rev-parse --git-dir >/dev/null 2>&1 || dvc config --local core.no_scm true; }

.PHONY: help setup repro plan new example reference ui machine worker spread test bench format lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18

setup: .venv/installed ## create .venv with the pinned packages

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
		exit 1; }
	@echo "Installing into .venv: PyTorch and the rest, about 6 GB, some minutes the first time"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation --editable .
	@# MLflow's telemetry is switched off by a variable only: set it for every Python of this .venv.
	@$(BIN)/python -c "import pathlib, sysconfig; \
		pathlib.Path(sysconfig.get_path('purelib'), 'photofinish-no-telemetry.pth').write_text( \
		\"import os; os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')\n\")"
	@touch $@

repro: example setup ## run the pipeline; only what changed runs again (EXAMPLE=mnist-linear: copy that example first)
	$(ready)
	dvc repro

plan: setup ## read params.yaml; `dvc status` then lists what will run
	$(ready)
	dvc repro plan

new: own = $(or $(FILE),my_model.py)
new: ## start a custom network: write my_model.py and print what goes into params.yaml (FILE=net.py: another name)
	@[[ "$(own)" =~ ^[^[:space:]]+\.py$$ ]] || \
		{ echo "error: FILE=$(own): name a Python file, as in make new FILE=net.py"; exit 2; }
	@test ! -e $(own) || { echo "error: $(own) exists: choose another, make new FILE=net.py"; exit 2; }
	@cp examples/my_model.py $(own)
	@echo "Wrote $(own). Add to params.yaml, below experiments, then make repro:"
	@echo "  mine:"
	@echo "    dataset: digits"
	@echo "    model:"
	@echo "      name: ./$(own):Net"
	@echo "      width: 32"

example:
ifdef EXAMPLE
	@test -f examples/$(EXAMPLE).yaml || \
		{ echo "error: no such example; there are: $(basename $(notdir $(wildcard examples/*.yaml)))"; exit 2; }
	@# Only the committed file or another example is overwritten, never the user's changes.
	@git diff --quiet HEAD -- params.yaml || \
		{ for file in examples/*.yaml; do cmp -s $$file params.yaml && exit; done; \
		echo "error: params.yaml has changes of yours: commit them, or save them elsewhere, first"; exit 2; }
	cp examples/$(EXAMPLE).yaml params.yaml
endif

ui: setup ## bring MLflow up to date and start its UI (PORT=5001 instead of 5000)
	python -m photofinish.tracking.sync
	@# By default MLflow starts 15 processes (2.3 GB), half of them for language models' judges.
	@# With one worker, Ctrl-C ends in a traceback of its server.
	@export MLFLOW_SERVER_ENABLE_JOB_EXECUTION="$${MLFLOW_SERVER_ENABLE_JOB_EXECUTION:-false}"; \
	case "$$MLFLOW_TRACKING_URI" in \
		http*) echo "The runs are at $$MLFLOW_TRACKING_URI" ;; \
		"") mlflow ui --workers 2 $(if $(PORT),--port $(PORT)) ;; \
		*) mlflow ui --workers 2 --backend-store-uri "$$MLFLOW_TRACKING_URI" \
			$(if $(PORT),--port $(PORT)) ;; \
	esac

reference: setup ## record this machine's results in reference/ for others (MACHINE=name: the folder's name)
	python -m photofinish.results.references $(if $(MACHINE),--machine $(MACHINE))

machine: setup ## record this machine's facts, for params.yaml to name (NAME=lab: machines/lab.json)
	@[[ "$(NAME)" =~ ^[A-Za-z0-9][A-Za-z0-9_-]*$$ ]] || \
		{ echo "error: give it a name of letters, digits, '-' and '_': make machine NAME=lab"; exit 2; }
	@mkdir -p machines
	python -m photofinish.machine.fingerprint > machines/$(NAME).json

worker: setup ## train here for a head (HEAD=tcp://head:8786; by default on this machine)
	@python -m photofinish.remote.worker $(HEAD)

spread: setup ## train missing results on all machines at once (LISTEN=tcp://0.0.0.0:8786)
	@python stages/plan.py
	@python -m photofinish.remote.spread $(if $(LISTEN),--listen $(LISTEN))

test: setup ## the whole check: lint, format, types, tests
	ruff check .
	ruff format --check .
	mypy
	pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

bench: setup ## time the trainer beside other loops (minutes, on a quiet machine; QUICK=1: see that it runs)
	python -m benchmarks $(if $(QUICK),--quick)

format: setup ## format the code
	ruff check --fix .
	ruff format .

lock: setup ## update requirements.lock from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --group dev pyproject.toml \
		--output-file requirements.lock

clean: ## remove everything that was made, except the environment
	rm -rf data results report metrics plots dvc.lock mlruns mlflow.db .photofinish .dvc/cache .dvc/tmp
