# The commands of a checkout. They need python3 (3.11 or newer) and make; everything else goes into .venv.
PYTHON ?= python3
PYTEST_ARGS ?=
# The suite mostly waits for other processes: three test files at a time, in the order of tests/conftest.py.
parallel := -n 3 --dist loadfile --no-loadscope-reorder
# Stacks of all threads after 150 s are of no use where a test may take minutes; the test's own time-out prints them.
patient := -o faulthandler_timeout=0

venv := .venv
bin := $(venv)/bin
installed := $(venv)/.installed
# The compiled package: only a change there needs a new build.
compiled := src/ottla/records

.DEFAULT_GOAL := help
.PHONY: help install demo check test test-random test-slow interop torture endurance bench lint format pins clean
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install: $(installed) ## .venv with everything in it, and Java for Spark (demo, test, bench and lint begin with it)
	@tools/ensure_java.sh || true

demo: install ## the main job: real flight data through the broker, consumer groups and Spark
	@$(bin)/ottla demo

# What these tests write is in memory where Linux has a folder for that: on a disk they mostly wait for fsync(). Python's caches of
# compiled modules and rewritten tests are used even where the environment turns them off: they save more than they take.
check: export PYTHONDONTWRITEBYTECODE =
check: lint ## lint, and the tests that need no other process: two minutes, for work in progress
	@memory=$$(test -w /dev/shm && echo /dev/shm); TMPDIR=$${memory:-$${TMPDIR:-/tmp}} HYPOTHESIS_PROFILE=check \
	  $(bin)/pytest -m "not slow and not interop and not torture and not endurance" -n 2 --dist loadfile -o tmp_path_retention_policy=failed \
	  tests/architecture tests/unit tests/scenarios tests/property $(PYTEST_ARGS)

# Kafka's jars are downloaded before the tests, since that may take longer than a test's time limit.
test: install ## the whole test suite except the tests that take minutes
	@! command -v mvn >/dev/null || tools/kafka fetch || true
	@$(bin)/pytest -m "not slow and not interop and not torture and not endurance" $(parallel) $(PYTEST_ARGS)

# The seed of this run; the same seed draws the same examples.
SEED := $(or $(SEED),$(shell date +%s))

test-random: install ## the property tests with examples drawn at random; SEED=NUMBER repeats a run
	@echo "drawn with SEED=$(SEED); make test-random SEED=$(SEED) repeats it"
	@HYPOTHESIS_PROFILE=random $(bin)/pytest -m "hypothesis and not slow and not interop and not torture and not endurance" $(parallel) \
	  --hypothesis-seed=$(SEED) $(PYTEST_ARGS) || { \
	  echo "failed with SEED=$(SEED); make test-random SEED=$(SEED) repeats it"; exit 1; }

test-slow: install ## the tests that take minutes
	@$(bin)/pytest -m slow $(patient) --timeout 1200 $(PYTEST_ARGS)

interop: install ## other clients and tools: the full matrix, on our broker and on a real Kafka
	@$(bin)/pytest -m "not torture and not endurance" $(patient) --timeout 600 $(parallel) tests/interop $(PYTEST_ARGS)

torture: install ## clients and brokers killed over and over, data directories damaged, and the guarantees checked
	@$(bin)/pytest -m torture $(patient) --timeout 1800 $(PYTEST_ARGS)

endurance: install ## groups on three real Kafka nodes that restart and die all the time, for ten minutes
	@$(bin)/pytest -m endurance $(patient) $(PYTEST_ARGS)

bench: install ## one script for each performance claim in the README; exits 1 at the end if one is missed
	@missed=; for script in $(sort $(wildcard benchmarks/[a-z]*.py)); do \
	  echo "== $$script"; $(bin)/python $$script || missed="$$missed $$script"; \
	done; test -z "$$missed" || { echo "promises missed in:$$missed" >&2; exit 1; }

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

clean: ## remove everything that was built here, except Kafka's jars (.kafka)
	rm -rf $(venv) build dist demo-output spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	rm -f $(compiled)/*.so $(compiled)/*.c
	find $(wildcard src tests benchmarks examples tools) -name __pycache__ -type d -prune -exec rm -rf {} +

$(bin)/python:
	@tools/make_venv.sh $(PYTHON) $(venv)

# The old build is removed first: Python prefers a compiled module to its source even when the source is newer. Build dependencies are
# pinned by constraints.txt as well, through both variables, since old and new versions of pip read different ones.
$(installed): pyproject.toml constraints.txt $(wildcard setup.py $(compiled)/*.py $(compiled)/*.pxd) | $(bin)/python
	@echo "installing Ottla and its dependencies into $(venv) (a minute or two the first time)"
	@rm -f $(compiled)/*.so
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  $(bin)/python -m pip install --quiet --use-pep517 --editable '.[broker,demo,dev]'
	@ls $(compiled)/*.so >/dev/null 2>&1 || echo "found no C compiler with Python's headers: $(compiled) runs uncompiled," \
	  "slower; to compile it: apt-get install gcc python3-dev, then make --always-make install"
	@touch $@
