# Everything a contributor runs. `make` alone prints what there is. Nothing but Python >= 3.11 and
# make is needed; Java >= 17 and Maven add the parts that talk to a real Kafka.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.setup-done

# Knobs, all optional.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
SEEDS ?= 200
SEED ?=
EVENTS ?=
ARGS ?=

# The ladder: cheapest rung first, so a mistake shows early. A rung counts once its folder is there.
RUNGS := tidy unit property transcripts contract simulation integration
LADDER = $(wildcard $(addprefix tests/,$(RUNGS)))
# More workers than processors, because most tests wait for a server.
SPREAD = --numprocesses $(WORKERS) --dist worksteal
BENCHES = $(patsubst tests/bench/bench_%.py,bench-%,$(wildcard tests/bench/bench_*.py))

.PHONY: help
help: ## print this list
	@echo "cape_stream: make TARGET [NAME=value]"
	@echo
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /  \1\t/' | expand -t 18
	@echo
	@echo "  First time here: 'make demo' (no services), then 'make test', then CONTRIBUTING.md."

# ---- setting up -----------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP) ## make .venv from the locked, hashed requirements (again: at once)

$(STAMP): requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "setup: no python3.11 or newer on the PATH"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: Python 3.11 or newer is needed, $(PYTHON) is older; use PYTHON=..."; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@PYTHON=$(PY) LOCK=requirements-dev.lock bash .ci/install_locked.sh
	@$(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@
	@echo "setup: $(VENV) is ready"

.PHONY: lock
lock: setup ## resolve the requirements anew into both lock files (needs the package index)
	@$(BIN)/uv pip compile $(LOCK_FLAGS) --all-extras pyproject.toml -o requirements-dev.lock
	@$(BIN)/uv pip compile $(LOCK_FLAGS) -c requirements-dev.lock pyproject.toml -o requirements.lock
LOCK_FLAGS := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --upgrade --quiet

# ---- seeing it work -------------------------------------------------------------------------

.PHONY: demo
demo: setup ## deliver 334,264 real flights to three topologies, no services [EVENTS=n]
	@$(BIN)/cape demo $(if $(EVENTS),--events $(EVENTS))

.PHONY: demo-kafka
demo-kafka: setup ## the same through a real Kafka, as separate processes [EVENTS=n]
	@$(BIN)/cape demo --backend kafka $(if $(EVENTS),--events $(EVENTS))

.PHONY: demo-queues
demo-queues: setup ## S3 objects through an SQS worker and its scanners to a topology [ARGS=...]
	@$(PY) -m cape_stream.demos.queues $(ARGS)

.PHONY: up
up: setup ## start a local Kafka and print its address
	@$(PY) -m deploy.local.broker start

.PHONY: down
down: setup ## stop the local Kafka
	@$(PY) -m deploy.local.broker stop

# ---- testing --------------------------------------------------------------------------------

.PHONY: test
test: setup ## the whole ladder; without Java or Maven all but the Kafka part [ARGS='-k word']
	@SIM_SEEDS=$(SEEDS) $(PY) -m pytest $(SPREAD) $(LADDER) $(ARGS)

.PHONY: sim
sim: setup ## simulated worlds with seeded faults [SEEDS=200] or one of them [SEED=n]
	@SIM_SEEDS=$(SEEDS) $(if $(SEED),SIM_SEED=$(SEED)) $(PY) -m pytest $(SPREAD) tests/simulation \
	  $(ARGS)

.PHONY: check
check: setup ## ruff, formatting, mypy strict: what a machine can say about the style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

.PHONY: docs
docs: setup ## run or compile the snippets of README and docs/, follow their links
	@$(PY) -m pytest tests/tidy/test_docs.py tests/tidy/test_decisions.py

.PHONY: bench
bench: $(BENCHES) ## every measurement, one after the other (real Kafka; quiet machine, please)

PEERS_STAMP := $(VENV)/bench/.done
$(PEERS_STAMP): requirements-bench.lock $(STAMP)
	@$(PY) -m venv --clear $(VENV)/bench
	@$(BIN)/uv pip install --quiet --python $(VENV)/bench/bin/python --require-hashes \
	  -r requirements-bench.lock
	@touch $@

.PHONY: bench-sqs
bench-sqs: setup $(PEERS_STAMP) ## SQS workers, ours, celery and dramatiq, and 100 drains [ARGS=...]
	@$(PY) -m tests.bench.bench_sqs $(ARGS)

.PHONY: bench-valkey
bench-valkey: setup $(PEERS_STAMP) ## locks, caches and limits beside others [ARGS=...]
	@$(PY) -m tests.bench.bench_valkey $(ARGS)

.PHONY: bench-%
bench-%: setup ## one measurement, such as bench-dispatch; last line is one JSON object
	@$(PY) -m tests.bench.bench_$(subst -,_,$*) $(ARGS)

.PHONY: ci
ci: check ## what CI runs, no more: check, the wheel and its tests, then the ladder
	@PY=$(PY) SPREAD="$(SPREAD)" bash .ci/test_wheel.sh
	@$(MAKE) test

.PHONY: clean
clean: ## remove what the tools leave behind, not .venv and not ./cape-data
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
