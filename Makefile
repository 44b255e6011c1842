# `make help` lists the targets. Each one first sets the environment up (scripts/setup_env.py),
# which takes minutes once and no time later. `make PYTHON=python3.12 ...` names the Python that .venv
# is made with; of a .venv that is already there it changes nothing: `make clean` first.

PYTHON ?=
# Further flags for the command a target runs: make speedup ARGS="--config.k=5", or
# make speedup ARGS="--config.modes=\"('plain', 'eagle')\""
ARGS ?=
# Tests are mostly compilation, which keeps one core busy: two processes take half the time.
TEST_WORKERS ?= 2

# Any Python can find or make the right one.
BOOT := $(or $(PYTHON),$(shell for name in python3 python3.14 python3.13 python3.12 python3.11 \
	python; do if $$name -c "import runpy" 2>/dev/null; then echo $$name; break; fi; done))

# Sets the shell variable `python` to the interpreter of the environment.
setup = if [ -z "$(BOOT)" ]; then echo "no Python was found: install Python 3.11 or newer" >&2; \
	exit 1; fi; python=$$(PYTHON="$(PYTHON)" "$(BOOT)" scripts/setup_env.py $(1)) || exit 1
# Says what runs, as it can be copied, and runs it.
run = printf '%s\n' 'python $(subst ','\'',$(1))'; "$$python" $(1)
pytest = $(call run,-m pytest -n $(TEST_WORKERS) --dist=worksteal -m $(1) $(ARGS))

.PHONY: help setup model speedup test test-long clean

help:
	@echo "make speedup    measure speculative decoding on a real model: runs/speedup/"
	@echo "make test       formatter, linter, type checker and tests"
	@echo "make test-long  the tests that take minutes each"
	@echo "make model      get the default model (93 MB download, 540 MB on disk)"
	@echo "make setup      only set the environment up"
	@echo "make clean      remove .venv and caches here; results in runs/ and the model stay"

setup:
	@$(call setup); echo "$$python"

model:
	@$(call setup); $(call run,-m scripts.get_smollm2 $(ARGS))

speedup:
	@$(call setup); "$$python" -m scripts.get_smollm2 >/dev/null || exit 1; \
	$(call run,-m eval.speedup --config=configs/speedup_smollm2.py --workdir=runs/speedup $(ARGS))

test:
	@$(call setup,--dev); set -e; \
	$(call run,-m ruff format --check --quiet .); \
	$(call run,-m ruff check --quiet .); \
	$(call run,-m mypy); \
	$(call pytest,"not long")

test-long:
	@$(call setup,--dev); $(call pytest,"long")

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .mypy_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
