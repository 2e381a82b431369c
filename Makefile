# `make repro` and `make test` need nothing but Python 3.11+ and git; `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
SHELL := /bin/bash
.DEFAULT_GOAL := help
# pip knows --group from 25.1 on only; Python 3.11 brings an older one.
install-group = python -m pip install --quiet --disable-pip-version-check $$(python -c \
	"import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['$(1)'])")
# DVC reads params.yaml before `plan` can check it; checked here first, every mistake gets its explanation. And a folder that
# git doesn't know, from a ZIP for instance, DVC takes once it is told.
ready = @python stages/plan.py && { git rev-parse --git-dir >/dev/null 2>&1 || dvc config --local core.no_scm true; }

.PHONY: help setup repro plan new example reference ui machine worker spread test bench format lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18

setup: .venv/installed ## create .venv with the pinned packages

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into .venv: PyTorch and the rest, about 6 GB, some minutes the first time"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# MLflow knows no file that switches its telemetry off, only a variable: set it for every Python of this .venv.
	@$(BIN)/python -c "import pathlib, sysconfig; \
		pathlib.Path(sysconfig.get_path('purelib'), 'photofinish-no-telemetry.pth').write_text( \
		\"import os; os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')\n\")"
	@touch $@

repro: example setup ## run the pipeline; only what changed runs again (EXAMPLE=mnist-linear: first take over examples/mnist-linear.yaml)
	$(ready)
	dvc repro

plan: setup ## take over params.yaml; `dvc status` and `dvc repro --dry` then tell what will run
	$(ready)
	dvc repro plan

new: own = $(or $(FILE),my_model.py)
new: ## begin a network of your own: writes my_model.py and says what goes into params.yaml (FILE=net.py: another name)
	@[[ "$(own)" =~ ^[^[:space:]]+\.py$$ ]] || { echo "error: FILE=$(own): name a Python file, as in make new FILE=net.py"; exit 2; }
	@test ! -e $(own) || { echo "error: $(own) is there already: name another, make new FILE=net.py"; exit 2; }
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
	@# Changes of the user's own are never overwritten: only the committed file, or an example, gives way to another.
	@git diff --quiet HEAD -- params.yaml || { for file in examples/*.yaml; do cmp -s $$file params.yaml && exit; done; \
		echo "error: params.yaml has changes of yours: commit them, or save them elsewhere, first"; exit 2; }
	cp examples/$(EXAMPLE).yaml params.yaml
endif

ui: setup ## bring MLflow up to date with the results and open its UI (PORT=5001: another port than 5000)
	python -m photofinish.tracking.sync
	@# By itself, MLflow starts 15 processes for one browser, 2.3 GB: half of them for jobs of language models' judges. With
	@# one worker, Ctrl-C ends in a traceback of its server's.
	@export MLFLOW_SERVER_ENABLE_JOB_EXECUTION="$${MLFLOW_SERVER_ENABLE_JOB_EXECUTION:-false}"; \
	case "$$MLFLOW_TRACKING_URI" in \
		http*) echo "The runs are at $$MLFLOW_TRACKING_URI" ;; \
		"") mlflow ui --workers 2 $(if $(PORT),--port $(PORT)) ;; \
		*) mlflow ui --workers 2 --backend-store-uri "$$MLFLOW_TRACKING_URI" $(if $(PORT),--port $(PORT)) ;; \
	esac

reference: setup ## record this machine's results in reference/, for others (MACHINE=name: the folder's name)
	python -m photofinish.results.references $(if $(MACHINE),--machine $(MACHINE))

machine: setup ## write down what this machine is, for params.yaml to name (NAME=lab: machines/lab.json)
	@[[ "$(NAME)" =~ ^[A-Za-z0-9][A-Za-z0-9_-]*$$ ]] || \
		{ echo "error: give it a name of letters, digits, '-' and '_': make machine NAME=lab"; exit 2; }
	@mkdir -p machines
	python -m photofinish.machine.fingerprint > machines/$(NAME).json

worker: setup ## train here what a head sends (HEAD=tcp://head:8786; by default a head on this machine)
	@python -m photofinish.remote.worker $(HEAD)

spread: setup ## train what is missing on all machines at once (LISTEN=tcp://0.0.0.0:8786: for other machines; ON="t4 mac": on those, too)
	@python stages/plan.py
	@python -m photofinish.remote.spread $(if $(LISTEN),--listen $(LISTEN)) $(if $(ON),--on "$(ON)")

test: setup ## the whole check: lint, format, types, tests
	ruff check .
	ruff format --check .
	mypy
	pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

bench: setup ## time the trainer beside other loops (minutes, on a quiet machine; QUICK=1: only to see that it runs)
	@$(call install-group,bench)
	python -m benchmarks $(if $(QUICK),--quick)

format: setup ## put the code in order
	ruff check --fix .
	ruff format .

lock: setup ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --group dev pyproject.toml --output-file requirements.lock

clean: ## remove everything that was made, the environment excepted
	rm -rf {.,sweeps/*}/{data,results,report,metrics,plots,dvc.lock} mlruns mlflow.db .photofinish .dvc/cache .dvc/tmp
