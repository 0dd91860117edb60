# Two commands are all that a first visit needs:   make sweep   and   make test
# Needs Python 3.11 or newer with venv, git and make; everything else goes into .venv.

PYTHON ?= python3
VENV ?= .venv
SWEEP ?= experiments/threshold_search.yaml
NAME ?= threshold_search
ARGS ?=

BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: FORCE help env dev sweep report test lint types imports unit test-browser test-slurm format clean

help:  ## say what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */|/' | \
		while IFS='|' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

# ---------------------------------------------------------------- environment
# A stamp file stands for a finished installation: an interrupted one is simply begun again.
# The development tools are a second stamp, so that `make sweep` does not install them.

env: $(VENV)/.installed  ## make .venv with what the program needs

dev: $(VENV)/.installed-dev  ## the same, with the tools that `make test` needs

# The stamp holds the folder it was made in: a virtual environment does not survive a move.
ifneq ($(shell cat $(VENV)/.installed 2>/dev/null),$(CURDIR))
$(VENV)/.installed $(VENV)/.installed-dev: FORCE
endif
FORCE:

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --editable

define make_venv
@if { test -e $(VENV)/.installed && ! grep -qxF '$(CURDIR)' $(VENV)/.installed; } || ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: $(PYTHON) is Python %d.%d; sparrow-lab needs 3.11 or newer, for example: make sweep PYTHON=python3.12" % sys.version_info[:2])' \
	&& { $(PYTHON) -m venv --clear $(VENV) \
		|| { echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; }; \
fi
@echo "Installing into $(VENV); once, and torch is large."
endef

$(VENV)/.installed: pyproject.toml
	$(make_venv)
	$(PIP_INSTALL) .
	@echo '$(CURDIR)' > $@

$(VENV)/.installed-dev: pyproject.toml
	$(make_venv)
	$(PIP_INSTALL) '.[dev,gym]' \
		|| { echo "note: without reasoning-gym (it needs a C compiler and Python's headers); its tests are skipped"; \
			$(PIP_INSTALL) '.[dev]'; }
	@echo '$(CURDIR)' > $(VENV)/.installed
	@touch $@

# ---------------------------------------------------------------- use
sweep: env  ## run a sweep: the threshold search, or SWEEP=file.yaml
	$(BIN)/sparrow-lab sweep $(SWEEP) $(ARGS)

report: env  ## write the report of a sweep: NAME=threshold_search
	$(BIN)/sparrow-lab report $(NAME) $(ARGS)

# ---------------------------------------------------------------- checks
test: lint types imports unit  ## every check that needs neither a GPU, nor Slurm, nor a browser

lint: dev  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev  ## mypy --strict on the three packages
	$(BIN)/mypy

imports: dev  ## no room imports one above it; no torch where none belongs
	$(BIN)/lint-imports --no-logo

# By file, because fixtures of a file are dear; each worker takes one to two GB.
unit: dev  ## pytest without gpu, slurm and browser; ARGS='-k name' narrows it
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile \
		-m 'not gpu and not slurm and not browser' $(ARGS)

test-browser: dev  ## the MLflow pages in a headless Chromium
	$(BIN)/python -m pytest -m browser $(ARGS)

test-slurm: dev  ## the tests on a real Slurm: starts one on this machine (root, Debian), and stops it
	slurm/test-cluster start
	$(BIN)/python -m pytest -m slurm $(ARGS); ended=$$?; slurm/test-cluster stop; exit $$ended

format: dev  ## ruff: mend what can be mended, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and every cache; runs/ and models/ stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
