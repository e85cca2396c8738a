# The commands of a checkout. They need python3 (3.11 or newer) and make, and install everything else into .venv.
PYTHON ?= python3
PYTEST_ARGS ?=
# Four test files at a time on two cores, as the tests mostly wait for other processes, in the order of tests/conftest.py: with three
# they take 15 % longer.
parallel := -n 4 --dist loadfile --no-loadscope-reorder
# Tests that take minutes do not dump the stacks of all threads after 150 s; pytest-timeout prints them.
slow_options := -o faulthandler_timeout=0

venv := .venv
bin := $(venv)/bin
installed := $(venv)/.installed
# The compiled package: only a change in it needs a new build.
compiled := src/ottla/records

.DEFAULT_GOAL := help
.PHONY: help install demo check test test-random test-slow interop torture endurance simulate bench lint format pins clean
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install: $(installed) ## install everything into .venv, and Java for Spark (demo, test, bench and lint run it first)
	@tools/ensure_java.sh || true

demo: install ## send real flight data through the broker, consumer groups and Spark
	@$(bin)/ottla demo

# Python's caches of compiled modules and rewritten tests are enabled even if the environment disables them: they save more time than they
# cost, since the tests start hundreds of processes.
check test test-random test-slow interop torture endurance: export PYTHONDONTWRITEBYTECODE =

# On Linux these tests write to memory (/dev/shm), because on a disk they mostly wait for fsync().
check: export OTTLA_TEST_CASES = 8
check: lint ## lint, and the tests that need no other programs, a few cases of each: two minutes, for work in progress
	@memory=$$(test -w /dev/shm && echo /dev/shm); TMPDIR=$${memory:-$${TMPDIR:-/tmp}} HYPOTHESIS_PROFILE=check \
	  $(bin)/pytest -m "not long and not slow and not interop and not torture and not endurance" -n 2 --dist loadfile \
	  -o tmp_path_retention_policy=failed tests/architecture tests/unit tests/scenarios tests/property $(PYTEST_ARGS)

# The jars of Kafka and of Spark's connector are downloaded before the tests, since that may take longer than a test's time limit.
test: export OTTLA_TEST_CASES = 2
test: export HYPOTHESIS_PROFILE = test
test: install ## the test suite, 2 cases of most parametrized tests, without the tests that take minutes
	@! command -v mvn >/dev/null || { tools/kafka fetch; OTTLA_KAFKA_VERSION=1.1.1 tools/kafka fetch; tools/spark-jvm-connector >/dev/null; } || true
	@$(bin)/pytest -m "not slow and not interop and not torture and not endurance" $(parallel) $(PYTEST_ARGS)

# The seed of this run; the same seed generates the same examples.
SEED := $(or $(SEED),$(shell date +%s))

test-random: install ## the property tests with random examples; SEED=NUMBER repeats a run
	@echo "running with SEED=$(SEED); make test-random SEED=$(SEED) repeats this run"
	@HYPOTHESIS_PROFILE=random $(bin)/pytest -m "hypothesis and not slow and not interop and not torture and not endurance" $(parallel) \
	  --hypothesis-seed=$(SEED) $(PYTEST_ARGS) || { \
	  echo "failed with SEED=$(SEED); make test-random SEED=$(SEED) repeats this run"; exit 1; }

test-slow: install ## the test suite with all cases, and with the tests that take minutes: an hour
	@$(bin)/pytest -m "not interop and not torture and not endurance" $(parallel) $(slow_options) --timeout 1200 $(PYTEST_ARGS)

interop: install ## the full matrix of other clients and tools, on Ottla's broker and on Apache Kafka
	@$(bin)/pytest -m "not torture and not endurance" $(slow_options) --timeout 600 $(parallel) tests/interop tests/secure \
	  tests/end_to_end/test_cli_on_kafka.py $(PYTEST_ARGS)

torture: install ## kill clients and brokers repeatedly, damage data directories, and check the guarantees
	@$(bin)/pytest -m torture $(slow_options) --timeout 1800 $(PYTEST_ARGS)

endurance: install ## groups on three Apache Kafka nodes that are restarted and killed, for ten minutes
	@$(bin)/pytest -m endurance $(slow_options) $(PYTEST_ARGS)

# The seed of the first run.
FIRST ?= 1

simulate: install ## 10,000 random runs of each group protocol in the simulator; FIRST=NUMBER is the first seed
	@$(bin)/ottla simulate --seeds 10000 --seed $(FIRST)

bench: install ## check each performance claim in the README; exits 1 at the end if one fails
	@missed=; for script in $(sort $(wildcard benchmarks/[a-z]*.py)); do \
	  echo "== $$script"; $(bin)/python $$script || missed="$$missed $$script"; \
	done; test -z "$$missed" || { echo "performance claims failed in:$$missed" >&2; exit 1; }

lint: $(installed) ## style, types and import rules
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy
	@$(bin)/lint-imports

format: $(installed) ## format the code
	@$(bin)/ruff check --fix .
	@$(bin)/ruff format .

pins: $(installed) ## write constraints.txt from what is installed
	@$(bin)/python tools/write_constraints.py

clean: ## remove all build products, except Kafka's jars (.kafka)
	rm -rf $(venv) build dist demo-output spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	rm -f $(compiled)/*.so $(compiled)/*.c
	find $(wildcard src tests benchmarks examples tools) -name __pycache__ -type d -prune -exec rm -rf {} +

$(bin)/python:
	@tools/make_venv.sh $(PYTHON) $(venv)

# The old build is removed first, because Python imports a compiled module even if its source is newer. Both variables pin the build
# dependencies to constraints.txt: old and new versions of pip read different ones.
$(installed): pyproject.toml constraints.txt $(wildcard setup.py $(compiled)/*.py $(compiled)/*.pxd) | $(bin)/python
	@echo "installing Ottla and its dependencies into $(venv) (a minute or two the first time)"
	@rm -f $(compiled)/*.so
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  $(bin)/python -m pip install --quiet --use-pep517 --editable '.[broker,demo,dev]'
	@ls $(compiled)/*.so >/dev/null 2>&1 || echo "no C compiler with Python's headers: $(compiled) runs uncompiled," \
	  "slower; to compile it: apt-get install gcc python3-dev, then make --always-make install"
	@touch $@
