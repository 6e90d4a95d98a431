# What a checkout needs: Python 3.11 or newer (with venv) and make. Everything else goes into .venv.
#
#   make setup    build .venv (done by the other targets when needed)
#   make test     the whole suite            ARGS="-k name" is handed to pytest; HAProxy's tests need a haproxy
#   make demo     the demo                   ARGS="--seconds 20" is handed to it
#   make chaos    the same with everything killed, for 15 minutes; ARGS="--seconds 90 --seed 11" instead
#   make lint     every gate
#   make simulate a million schedules, in as many sittings as it takes: Ctrl-C and begin again
#                                            SEEDS=10000 FOLDER=.simulation ARGS="--jobs 1"
#   make bench    the benchmarks             ARGS is handed to them
#   make docs     the generated pages of docs/
#   make clean    remove .venv and all caches

.DEFAULT_GOAL := help
.PHONY: help setup test demo chaos lint simulate bench docs clean

# PYTHON=/path/to/python3 chooses the interpreter that .venv is made from.
PYTHON ?=
ARGS ?=
# Processes for the tests: most of them wait for servers, so there may be more than cores.
JOBS ?= 4
# What `make simulate` runs, and where it keeps what is done so far.
SEEDS ?= 1000000
FOLDER ?= .simulation
BIN := .venv/bin
STAMP := .venv/.setup-done
# The pages that are generated: page:module, each made by `python -m MODULE > docs/page.md`.
PAGES := transitions:rollbook.projections.state.transitions configuration:rollbook.adapters.settings.reference \
    events:rollbook.adapters.catalogue

# nats-server, sglang-router and rollbook itself are found in .venv, also by the programs that make starts.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# An active environment of the caller's must not be mistaken for this one.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH
# uv trusts the certificates that the machine trusts, as pip does: a company's proxy needs it.
export UV_SYSTEM_CERTS := 1

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

# ensurepip is asked for because Debian ships Python without it, and then venv makes no pip.
$(STAMP): pyproject.toml constraints.txt Makefile
	@set -eu; \
	if ! '$(BIN)/python' -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=''; \
	    for python in "$${PYTHON:-python3}" python3 python3.13 python3.12 python3.11 /usr/bin/python3 python; do \
	        if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            found="$$python"; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo 'make setup: no Python 3.11 or newer with venv and ensurepip was found.' >&2; \
	        echo '  On Debian or Ubuntu: apt-get install python3 python3-venv' >&2; \
	        echo '  Elsewhere: make setup PYTHON=/path/to/python3' >&2; \
	        exit 1; \
	    fi; \
	    echo "make setup: .venv from $$("$$found" --version)"; \
	    "$$found" -m venv --clear .venv; \
	fi; \
	if '$(BIN)/python' -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv \
	    && '$(BIN)/uv' pip install --quiet --compile-bytecode --python '$(BIN)/python' --constraint constraints.txt --editable '.[all,dev]'; then \
	    echo 'make setup: installed with uv'; \
	else \
	    echo 'make setup: uv could not do it, plain pip will'; \
	    '$(BIN)/python' -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev]'; \
	fi; \
	touch '$@'

test: setup
	'$(BIN)/python' -m pytest --numprocesses $(JOBS) $(ARGS)

demo: setup
	'$(BIN)/rollbook' demo $(ARGS)

chaos: setup
	'$(BIN)/rollbook' demo --chaos $(or $(ARGS),--seconds 900)

lint: setup
	'$(BIN)/ruff' check
	'$(BIN)/ruff' format --check
	'$(BIN)/mypy'
	'$(BIN)/basedpyright' --pythonpath '$(BIN)/python'
	'$(BIN)/lint-imports' --no-cache

simulate: setup
	PYTHONPATH=tests '$(BIN)/python' -m simulation.campaign '$(FOLDER)' --seeds $(SEEDS) $(ARGS)

bench: setup
	'$(BIN)/python' -m bench $(ARGS)

docs: setup
	@set -eu; for page in $(PAGES); do \
	    '$(BIN)/python' -m "$${page#*:}" > "docs/$${page%%:*}.md.new"; \
	    mv "docs/$${page%%:*}.md.new" "docs/$${page%%:*}.md"; \
	    echo "docs/$${page%%:*}.md"; \
	done

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
