# dpsweep: `make demo` runs a small study from data to report, `make test` checks a change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
# Rules call `dpsweep` by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
FINDINGS := $(or $(STUDY),studies/frozen-features.yaml)
# Where Python is told to write no bytecode, every call compiles Snakemake and its libraries anew, which takes
# longer than a plan.
unexport PYTHONDONTWRITEBYTECODE
# Two jobs with many threads each are slower than two with one; the study sets torch's own number.
export OMP_NUM_THREADS ?= 1
SLOWEST := --durations 15 --durations-min 1
# Tests run side by side, those of one file together: they share what the file prepares.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(SLOWEST)

.PHONY: help setup demo findings film published status test test-for test-slow test-lowest test-newest test-slurm real-data planted-bugs nightly findings-check peers bench gpu-inputs gpu check docs format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv with the pinned dependencies and the package

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"Python 3.11 to 3.13 is needed, found {v[0]}.{v[1]}: make PYTHON=python3.11 ...") if not (3, 11) <= v <= (3, 13) else None'
	$(PYTHON) -m venv $(VENV)
	@# A module is compiled when it is first imported: most never are.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## run the demo study and say where its report is
	@# The first figure comes first, and with it all that it needs.
	snakemake --profile demo --prioritize results/demo/figures/fig1_accuracy_heatmaps.pdf -- all
	@echo "Report: $(CURDIR)/results/demo/report.html"

status: setup ## cells done, running, failed, waiting; GPU hours and time left (STUDY=...)
	@dpsweep status --study $(or $(STUDY),config.yaml)

FAST := -m "not slow and not nightly"
test: check ## check, then the tests that take seconds: what a change needs
	$(BIN)/pytest $(PARALLEL) $(FAST)

# The map of CONTRIBUTING.md.
TESTS_FOR = $(shell sed -n 's/^| `$(PACKAGE)` | //p' CONTRIBUTING.md | grep -o 'tests/[a-z_./]*')
test-for: ## the fast tests for a package of src/dpsweep: make test-for PACKAGE=privacy
	@test -n "$(TESTS_FOR)" || { echo "PACKAGE: found '$(PACKAGE)'; allowed: a package in the map of CONTRIBUTING.md"; exit 1; }
	@$(MAKE) --no-print-directory setup
	$(BIN)/pytest $(PARALLEL) $(FAST) $(TESTS_FOR)

test-slow: setup ## the tests that take longer
	$(BIN)/pytest $(PARALLEL) -m "slow and not real_data"

# $(call tested_in,FOLDER,OPTIONS): the fast tests and the golden chain in an environment that uv makes.
define tested_in
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(1)
	$(BIN)/uv pip install --quiet --prerelease disallow --python $(1)/bin/python $(2) -e ".[dev]"
	PATH=$(CURDIR)/$(1)/bin:$$PATH $(1)/bin/pytest $(PARALLEL) $(FAST)
	PATH=$(CURDIR)/$(1)/bin:$$PATH $(1)/bin/pytest $(SLOWEST) tests/workflow/test_golden.py
endef

test-lowest: setup ## the fast tests and the golden chain with the lowest versions of all dependencies (a network)
	@mkdir -p build
	$(BIN)/uv pip compile pyproject.toml --no-deps --resolution lowest-direct --quiet --output-file build/lowest.txt
	$(call tested_in,build/lowest,--constraint build/lowest.txt)

test-newest: setup ## the same with the newest versions of all (a network)
	$(call tested_in,build/newest,--upgrade --refresh)

real-data: setup ## train on real images and texts of ../shared, if it exists
	$(BIN)/pytest -m "not nightly" $(SLOWEST) -s tests/real_data

nightly: test test-slow test-lowest test-newest test-slurm real-data planted-bugs ## every test, one after another: hours
	DPSWEEP_TEST_SLURM=1 $(BIN)/pytest -m nightly $(SLOWEST)

findings: setup ## run the study of frozen features, for docs/findings.md (STUDY=studies/frozen-features-local.yaml reads ../shared)
	snakemake --config study=$(FINDINGS) -- all
	$(BIN)/python -m benchmarks.findings --study $(FINDINGS)

published: setup ## train the published settings of docs/findings.md
	dpsweep run studies/fashion-mnist.yaml published momentum

film: setup ## keep what studies/film.yaml has trained, for docs/findings.md (STUDY=studies/film-local.yaml)
	$(BIN)/python -m benchmarks.findings.film $(if $(STUDY),--study $(STUDY))

test-slurm: setup ## the workflow on a real Slurm on this machine (root; installs Debian's slurm-wlm)
	@$(BIN)/python -m tests.slurm.cluster install
	DPSWEEP_TEST_SLURM=1 $(BIN)/pytest -m "not nightly" $(SLOWEST) tests/slurm

planted-bugs: setup ## plant one bug after another and check that the fast tests catch it (30 minutes)
	$(BIN)/python -m benchmarks.campaigns.planted_bugs

findings-check: ## run the scripts of findings/ with the packages that they pin (a network, half an hour)
	for script in findings/*.sh; do echo "$$script" && bash "$$script" || exit 1; done

peers: setup ## measure other libraries beside dpsweep and write the tables of docs/peers.md (50 minutes)
	$(PYTHON) -m venv build/peers && build/peers/bin/pip install --quiet --disable-pip-version-check jax-privacy==2.0.0
	$(BIN)/python -m benchmarks.peers.layers
	$(BIN)/python -m benchmarks.peers.budgets --jax build/peers/bin/python
	$(BIN)/python -m benchmarks.peers.speed --jax build/peers/bin/python
	$(BIN)/python -m benchmarks.tables

bench: setup ## measure on the CPU and write the tables of docs/performance.md (an hour)
	$(BIN)/python -m benchmarks.speed.step_cost
	$(BIN)/python -m benchmarks.speed.calibration
	$(BIN)/python -m benchmarks.tables

gpu-inputs: setup ## fill the folder INPUTS with all that `make gpu` reads (network, ../shared)
	$(BIN)/python -m benchmarks.gpu.inputs $(INPUTS)

# No set-up: a machine with a GPU may have torch, timm, peft and transformers only (PYTHON=...).
gpu: ## all checks and measurements on a GPU, piece by piece; call again until it is done
	$(PYTHON) -m benchmarks.gpu $(INPUTS)

check: setup ## lint, formatting, workflow lint, declared dependencies, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/python workflow/scripts/lint.py
	$(BIN)/deptry src workflow
	$(BIN)/mypy

docs: setup ## README.md and docs/ as a site in build/site, with a gallery, pages to explore findings, and every link checked
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	$(BIN)/python -m benchmarks.site build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Site: $(CURDIR)/build/site/index.html"

format: setup ## format Python and Snakemake files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

lock: setup ## resolve the dependencies of pyproject.toml into requirements.lock (UPGRADE=1: newest)
	@# The order of the requirements could choose a release candidate of sympy (findings/).
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --prerelease disallow --no-annotate --quiet \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --output-file requirements.lock

clean: ## remove the demo's results (trials included)
	rm -rf results/demo
