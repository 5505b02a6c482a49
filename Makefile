# `make course` builds everything there is to see; `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# On Linux, PyPI's torch brings gigabytes of CUDA; PyTorch's own index has a wheel for the CPU alone.
ifeq ($(shell uname -s),Linux)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
endif

PACKAGE := $(shell find src -name '*.py')
EXERCISES := $(wildcard graders/*.py solutions/*.md)
PAGES := $(shell find book -type f -not -path 'book/_build/*' -not -path '*/__pycache__/*')
CLASS := $(wildcard examples/class/*)

SETUP := $(VENV)/made
PEERS := .venv-peers/made
NOTEBOOKS := release/made
VENDOR := build/vendor/made
BOOK := book/_build/html/.made
GRADES := build/class/made

.PHONY: help course setup book serve notebooks grade audit check test peers lint lock clean
.DELETE_ON_ERROR:

help:  ## list what make can do
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-10s %s\n", $$1, $$2}'

course: book notebooks grade  ## build the book and the notebooks, grade the example class, say where all lies
	@echo
	@echo "The book:              book/_build/html/index.html (make serve opens it at http://localhost:8000)"
	@echo "The student notebooks: release/"
	@echo "The example class:     build/class/grades.csv"

setup: $(SETUP)  ## make .venv with the locked versions
book: $(BOOK)  ## build the book
notebooks: $(NOTEBOOKS)  ## write the student notebooks to release/
grade: $(GRADES)  ## grade the example class and print its table
	@cat build/class/table.txt

serve: $(BOOK)  ## show the built book at http://localhost:8000 (PORT=8000)
	@echo "The book is at http://localhost:$(or $(PORT),8000); Ctrl-C ends it."
	@$(PY) -m http.server --bind localhost --directory book/_build/html $(or $(PORT),8000)

audit: $(SETUP)  ## judge every named right and wrong answer by the checks, and change every reference
	$(VENV)/bin/rltokens audit --mutants

check: $(SETUP)  ## run the fast tests, under a minute
	$(PY) -m pytest -m "not slow"

test: $(SETUP) $(BOOK)  ## run every test
	$(PY) -m pytest

peers: $(PEERS)  ## compare our functions with verl's, TRL's and rlax's (in .venv-peers, 2.5 GB)
	PEERS=required .venv-peers/bin/python -m pytest --disable-warnings tests/peers

lint: $(SETUP)  ## check the code's style
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

lock: $(SETUP)  ## choose versions anew (needs uv); the CUDA libraries of torch's other wheels are left out
	@mkdir -p build
	@{ printf '%s\n' '# Every version of the project, for any system and Python 3.11 or newer. Made by `make lock`; do not edit.' \
	  '# torch stands without the CUDA libraries that its Linux wheel from PyPI asks for: its CPU wheel needs none.'; \
	  uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --no-header --no-annotate --quiet \
	  | grep -vE '^(nvidia-|cuda-|triton)'; } > build/requirements.lock
	mv build/requirements.lock requirements.lock

clean:  ## remove all that make made, .venv and .venv-peers included
	rm -rf .venv .venv-peers build release book/_build runs

$(SETUP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make setup PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --no-deps --constraint requirements.lock $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PY) -m pip install --quiet --requirement requirements.lock
	$(PY) -m pip install --quiet --no-deps --editable .
	@touch $@

# Twice quiet: pip warns of what a machine's own configuration names and this environment does not need.
$(PEERS): requirements.lock tests/peers/requirements.txt tests/peers/constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --quiet --no-deps --constraint requirements.lock $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	.venv-peers/bin/python -m pip install --quiet --quiet --requirement tests/peers/requirements.txt
	.venv-peers/bin/python -m pip install --quiet --quiet --no-deps --editable .
	@touch $@

$(NOTEBOOKS): $(SETUP) $(PACKAGE) $(EXERCISES)
	$(VENV)/bin/rltokens notebooks
	@touch $@

$(VENDOR): $(SETUP) book/package.json book/package-lock.json book/vendor.py
	$(PY) book/vendor.py
	@touch $@

$(BOOK): $(NOTEBOOKS) $(VENDOR) $(PAGES)
	$(VENV)/bin/jupyter-book build book --warningiserror --nitpick --keep-going
	@touch $@

$(GRADES): $(NOTEBOOKS) $(CLASS)
	$(VENV)/bin/rltokens example-class >/dev/null  # `make grade` prints the table
	@touch $@
