# Two commands do everything: `make run` and `make test`. Both install what they need into .venv.
SHELL := /bin/sh
BIN := .venv/bin
ARGS ?=
SECONDS ?= 60
.DEFAULT_GOAL := help
.PHONY: help run test evidence check lint layers types docs bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Start gateway, decision API and a demo backend (ARGS="--gateway 127.0.0.1:9090" for flags)
	@scripts/install server
	@exec $(BIN)/sluicegate up $(ARGS)

test: ## Run the whole suite (ARGS="tests/app -k edit" for a part; SLUICEGATE_STRICT=1: no skips)
	@scripts/programs
	@scripts/broker
	@scripts/install dev
	@$(BIN)/python scripts/suite $(ARGS)

evidence: ## What a failing store does, a minute for each fault, and a table of it (SECONDS=60)
	@scripts/programs
	@scripts/install dev
	@SLUICEGATE_FAULT_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/faults tests/races_redis $(ARGS)

check: ## Lint, format, types, layers and docs; changes nothing
	@scripts/install dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/repo

lint: ## Repair what ruff can repair, and format
	@scripts/install dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/bounds_page

bench: ## Measure beside other limiters; results are kept in bench/results/
	@scripts/install bench
	@$(BIN)/python bench/run.py $(ARGS)

lock: ## Resolve requirements/*.in anew (needs uv)
	scripts/lock

clean: ## Remove .venv and caches; keeps .sluicegate (data)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
