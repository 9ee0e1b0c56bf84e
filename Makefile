# `make run`, `make test`, `make check` work from a fresh clone; each sets up what it needs first.
# Every prerequisite that is missing is named in one line.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.NOTPARALLEL:
# Or each of a thousand Python processes would compile what it imports, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
TESTS ?= tests
# Processes that tests run in, each with servers and a Spark session of its own (4 GB). One more than cores: tests wait for
# servers and processes.
WORKERS ?= 3
# The Pythons of this machine that run, the one that all tests run with first; pyenv has more than those on the PATH.
PYTHONS ?= $(shell for minor in 3.11 3.12 3.13; do \
  for python in "$$(command -v python$$minor)" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$minor.*/bin/python; do \
  "$$python" -c '' 2>/dev/null && echo "$$python" && break; done; done)
PYTHON ?= $(or $(firstword $(PYTHONS)),python3)

.PHONY: help setup run run-shop test test-fast test-pure test-long test-sparks test-spark-35 test-pythons test-sessions soak-worlds soak-busy soak-pgbench soak-kill soak-replicas soak-schema soak-database soak-page types bench-peers bench-kafka bench-scale bench-s3 check format clean java python build-tools

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: java python $(VENV)/.installed $(VENV)/.native $(VENV)/.jars  ## virtual environment, the package, Spark's jars; quick the second time

$(VENV)/.installed: pyproject.toml
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	  echo "setup: Python 3.11 or newer is needed: install it (Debian: apt-get install python3 python3-venv), or set PYTHON=" >&2; exit 1
	fi
	if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then
	  echo "setup: $(PYTHON) has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1
	fi
	[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV)
	echo "setup: installing the package and its dependencies into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# Where there is no C compiler, Zig's is fetched from PyPI. Without native code all works, slower; only its own test fails.
$(VENV)/.native: $(VENV)/.installed $(wildcard lakebed/decode/native/*.[ch]) lakebed/decode/native/build.py
	@if ! command -v $${CC:-cc} gcc clang >/dev/null; then
	  echo "setup: no C compiler, fetching Zig's"
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check 'ziglang>=0.13' || true
	fi
	if $(BIN)/python lakebed/decode/native/build.py; then touch $@; fi

$(VENV)/.jars: $(VENV)/.installed lakebed/sparks/session.py lakebed/sparks/versions.py
	@echo "setup: fetching Spark's jars"
	if ! $(BIN)/python -m lakebed.session --fetch-jars >$(VENV)/jars.log 2>&1; then
	  grep '^lakebed:' $(VENV)/jars.log >&2 || { tail -n 15 $(VENV)/jars.log >&2; }
	  exit 1
	fi
	touch $@

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"
	major=$$("$$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1 || true)
	if [ -z "$$major" ] || [ "$$major" -lt 17 ]; then
	  echo "setup: Java 17 or newer is needed, found $${major:-none}: install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME" >&2; exit 1
	fi

python:
ifneq ($(origin PYTHON),file)
	@if [ -x $(BIN)/python ]; then
	  minor='import sys; print("{}.{}".format(*sys.version_info))'
	  asked=$$("$(PYTHON)" -c "$$minor") there=$$($(BIN)/python -c "$$minor")
	  if [ "$$asked" != "$$there" ]; then
	    echo "setup: $(VENV) is of Python $$there, not of $$asked: name another folder (VENV=.venv-$$asked), or remove $(VENV) first" >&2; exit 1
	  fi
	fi
endif

build-tools:
	@command -v mvn >/dev/null || { echo "test: Maven fetches the servers of the tests: install it (Debian: apt-get install maven)" >&2; exit 1; }
	command -v go >/dev/null || { echo "test: Go builds the S3 server of the tests: install it from https://go.dev/dl" >&2; exit 1; }

run: setup  ## the example pipeline; options go into ARGS, e.g. make run ARGS="--duration 20"
	@exec $(BIN)/lakebed run examples/orders.yml $(ARGS)

run-shop: setup build-tools  ## a busy shop in PostgreSQL, captured by Debezium into Kafka, and a copy of all its tables; Ctrl-C ends it
	@exec $(BIN)/python -m tests.infra.shop $(ARGS)

test: setup build-tools  ## the tests, with real servers; TESTS=path narrows, WORKERS=0 is one process, ARGS goes to pytest
	@$(BIN)/python -m tests.infra.downloads
	exec $(BIN)/python -m pytest $(TESTS) -m "$(or $(MARKS),not long)" --durations=15 -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-long:  ## the tests that take long and show more of what others show: engines, databases, kills; before a release
	$(MAKE) test MARKS=long

test-fast: setup  ## the tests that need no Spark, no server and little time
	@exec $(BIN)/python -m pytest $(TESTS) -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

PURE = planning schema log decode positions sortkey

test-pure: $(VENV)/.installed  ## the tests of planning, schemas, the log, decoding, positions, sort keys: no Java, no jars, no server
	@exec $(BIN)/python -m pytest $(addprefix tests/,$(PURE)) -m "not slow" -n 2 $(ARGS)

test-sparks: setup build-tools  ## the tests of what touches Spark, with each version; SPARKS="4.0.5 4.3.0" narrows, ARGS goes to pytest
	@exec $(BIN)/python -m tests.sparks $(SPARKS) -- $(ARGS)

test-spark-35: setup build-tools  ## Spark 3.5 with Iceberg's runtime reads tables as Iceberg's; ARGS goes to pytest
	@ICEBERG_SPARK=3.5 exec $(BIN)/python -m pytest tests/iceberg/test_spark_reads.py $(ARGS)

test-pythons: build-tools  ## setup, the fast tests and those of Spark, with each Python found; PYTHONS="python3.12 …" narrows
	@failed=
	for python in $(PYTHONS); do
	  version=$$("$$python" -c 'import platform; print(platform.python_version())')
	  echo "Python $$version"
	  venv=.build/python-$$version
	  { $(MAKE) setup VENV=$$venv PYTHON="$$python" &&
	    $$venv/bin/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS) &&
	    $$venv/bin/python -m pytest tests/sparks/test_any_spark.py tests/sparks/test_spark_connect.py $(ARGS)
	  } || failed+=" $$version"
	done
	echo "failed:$${failed:- none}"
	[ -z "$$failed" ]

test-sessions: setup  ## sessions with each setting that could change a row, and with Java 17, 21 and 25; ARGS goes to pytest
	@LAKEBED_SESSIONS=all exec $(BIN)/python -m pytest tests/sparks/test_any_session.py $(ARGS)

soak-worlds: setup build-tools  ## the randomised tests with ten times as many worlds and examples (TIMES=10); TESTS=path narrows
	@LAKEBED_WORLDS=$(or $(TIMES),10) exec $(BIN)/python -m pytest $(TESTS) -m worlds -n $(WORKERS) --dist worksteal $(ARGS)

soak-busy: setup build-tools  ## all tests beside busy loops (LOOPS=4): none may need a quick machine; takes longer
	@$(BIN)/python -m tests.infra.busy_loops $(or $(LOOPS),4) &
	$(MAKE) test

soak-pgbench: setup build-tools  ## minutes of pgbench through Debezium and Kafka, every reader compared; DURATION=300 seconds
	@exec $(BIN)/python -m tests.end_to_end.soak_pgbench --duration $(or $(DURATION),300) $(ARGS)

soak-kill: setup build-tools  ## a running pipeline killed with -9 twenty times (KILLS=20), the table compared with the topic
	@exec $(BIN)/python -m tests.end_to_end.soak_kill --kills $(or $(KILLS),20) $(ARGS)

soak-replicas: setup build-tools  ## replicas and writers on one table, killed in turn, then all is compared; DURATION=600 seconds
	@exec $(BIN)/python -m tests.end_to_end.soak_replicas --duration $(or $(DURATION),600) $(ARGS)

soak-schema: setup build-tools  ## tables of PostgreSQL and MariaDB altered in every way under load, with kill -9; ROUNDS=5
	@exec $(BIN)/python -m tests.end_to_end.soak_schema_changes --rounds $(or $(ROUNDS),5) $(ARGS)

soak-database: setup build-tools  ## a hundred tables altered under load, the pipeline killed twenty times (KILLS=20); ARGS="--database mariadb"
	@exec $(BIN)/python -m tests.end_to_end.soak_database --kills $(or $(KILLS),20) $(ARGS)

types: setup build-tools  ## every type of a database through Debezium and a pipeline, compared with the database; DATABASE=postgres or mariadb
	@exec $(BIN)/python -m tests.end_to_end.every_type $(or $(DATABASE),postgres)

soak-page: setup  ## the web page in a headless Chromium while its tables are written: what a reader does survives; DURATION=600 seconds
	@exec $(BIN)/python -m tests.ui.live_page --seconds $(or $(DURATION),600) $(ARGS)

bench-peers: setup  ## lakebed beside Paimon, Hudi, Iceberg, Delta on one input; the first time installs them (minutes)
	@exec $(BIN)/python -m benchmarks.peers $(ARGS)

bench-kafka: setup build-tools  ## Kafka to a table, lakebed beside Delta append and MERGE, Hudi, Paimon: events/s, freshness at fixed rates
	@exec $(BIN)/python -m benchmarks.kafka_peers $(ARGS)

bench-scale: setup  ## how cost grows with rows, parts, changes, tables and commits
	@exec $(BIN)/python -m benchmarks.scale $(ARGS)

bench-s3: setup build-tools  ## batches on a real S3 server behind a delay, and what its requests cost
	@exec $(BIN)/python -m benchmarks.s3 $(ARGS)

check: $(VENV)/.installed  ## lint, format, types, imports, where tests wait, and the Java of each Spark that is here
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict lakebed tools
	$(BIN)/lint-imports
	$(BIN)/python -m tests.waits
	$(BIN)/python -m tests.sparks.java

format: $(VENV)/.installed  ## put files into the form that `make check` asks for
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was built or fetched, and the example's table
	rm -rf $(VENV) .build build dist *.egg-info lakebed/decode/native/*.so lake/orders lake/shop .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
