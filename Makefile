# make demo      show in two minutes what FAUST does differently from backpropagation, on the digits data set
# make test      run all tests
# make check     check lint rules, formatting and types
# make docs      check that the generated pages are up to date, and build the documentation site in site/
# make package   build a wheel and a source archive in dist/, and try the wheel in an empty environment
# make tools     install what all of these need at once, which is faster than one after the other
# Every target creates the environment in .venv first.

VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
# Python compiles a module when it is first imported: less work than compiling all modules of all packages.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
FAUSTNET = $(BIN)/faustnet
DEMO = runs/demo
# Some containers set it. Without compiled files, every process of a test compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs package tools clean

demo: $(VENV)/.installed
	@test ! -e $(DEMO)/play.html || rm -rf $(DEMO)
	@$(FAUSTNET) demo --out $(DEMO)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/tools/freshness.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Build isolation installs hatchling, in the version of the constraints file.
package: $(VENV)/.installed-package
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist
	.ci/package $(BIN)/python

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[export,figures,report]'
	@touch $@

# One stamp file per set of tools, so that tools are installed only when a target needs them.
$(VENV)/.installed-%: $(VENV)/.installed
	$(PIP) --editable '.[$*]'
	@touch $@

tools:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[check,docs,export,figures,package,report,test]'
	@cd $(VENV) && touch .installed .installed-check .installed-docs .installed-package .installed-test

clean:
	rm -rf $(VENV) runs site build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache
