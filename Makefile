# make run   the sample corpus, end to end: documents → sentences → embeddings → scores
# make test  every test, lint and types
# make faults  30 kills a launcher, at random moments, instead of the few of `make test`; SLURM by tests/slurm/start.sh
# Both make a virtual environment in .venv and install into it what is missing; with nothing changed that takes no time.

PYTHON ?= python3
PIP = .venv/bin/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: run test faults

run: .venv/installed
	.venv/bin/pipeline run conf/sample.yaml

test: .venv/tested
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/pytest

faults: .venv/tested
	PIPELINE_KILLS=30 .venv/bin/pytest tests/faults tests/launchers tests/conf/test_ray_in_slurm.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python setup.cfg pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

.venv/tested: .venv/installed
	$(PIP) -e ".[test]"
	touch $@
