# make run        the sample corpus, end to end: documents → sentences → embeddings → scores
# make test       lint, types and every test that is not marked slow: minutes
# make test-rest  the other tests: kills, clusters, SLURM (where tests/slurm/start.sh has started one), S3, large inputs
# make test-all   both
# make faults     30 kills a launcher, at random moments, instead of the few of `make test-rest`
# make docs       the documentation site, in build/site; nothing is fetched while it is built
# make official   the official encoder (encode.backend: sonar-space) against ours, in a virtual environment of its own
# All make a virtual environment in .venv and install into it what is missing; with nothing changed that takes no time.

PYTHON ?= python3
PIP = .venv/bin/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt
# 24 000 files are compiled in a minute of CPU, for which pip would use one core. Those for other Pythons are left out.
COMPILE = .venv/bin/python -m compileall -qq -j 0 .venv/lib || true
# On two cores, further workers fill the waits of two. Those of slow tests take a whole file, whose tests share corpora.
WORKERS ?= 4
WORKERS_OF_SLOW ?= 4
# Corpora of tests lie in memory where 4 GB are free: on a disk, tests wait for thousands of files to be synced.
IN_MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df --output=avail -m /dev/shm | tail -1)" -ge 4096 ] && echo /dev/shm)
# Memory in large pages: each of hundreds of processes touches 300 MB for torch alone, in 70 000 small ones.
PYTEST = GLIBC_TUNABLES=glibc.malloc.hugetlb=1 OMP_NUM_THREADS=1 $(if $(IN_MEMORY),PYTEST_DEBUG_TEMPROOT=$(IN_MEMORY)) .venv/bin/pytest
# A Python that may not write byte code would compile torch again in every process: some seconds each.
unexport PYTHONDONTWRITEBYTECODE
FAST = not slow and not cluster and not slurm and not faults and not gpu

.PHONY: run test test-rest test-all docs faults official

run: .venv/installed
	.venv/bin/pipeline run conf/sample.yaml

# Types are checked beside the tests; what mypy has to say comes last.
test: .venv/tested
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	@.venv/bin/mypy >.venv/mypy.log 2>&1 & types=$$!; \
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations=20 -m "$(FAST)"; tests=$$?; \
	wait $$types || { cat .venv/mypy.log; exit 1; }; exit $$tests

test-rest: .venv/tested
	$(PYTEST) -n $(WORKERS_OF_SLOW) --dist loadfile --no-loadscope-reorder --durations=40 -rs --no-fold-skipped -m "not ($(FAST)) and not gpu"

test-all: test test-rest

docs: .venv/tested
	.venv/bin/mkdocs build --strict --clean

faults: .venv/tested
	PIPELINE_KILLS=30 $(PYTEST) -m "faults or cluster or slurm"

official: .venv-sonar-space/installed
	OMP_NUM_THREADS=1 .venv-sonar-space/bin/pytest tests/stages/test_encode_official.py tests/stages/test_sonar_layouts.py

.venv-sonar-space/installed: requirements-sonar-space.txt setup.cfg
	$(PYTHON) -m venv .venv-sonar-space
	.venv-sonar-space/bin/python -m pip install -q --disable-pip-version-check -r requirements-sonar-space.txt
	touch $@

# The pip of Python 3.11 takes twice as long as today's to find what fits.
.venv/bin/python:
	$(PYTHON) -m venv .venv
	$@ -m pip install -q --disable-pip-version-check -U pip

.venv/installed: .venv/bin/python setup.cfg pyproject.toml constraints.txt
	$(PIP) -e ".[all]"
	$(COMPILE)
	touch $@

.venv/tested: .venv/bin/python setup.cfg pyproject.toml constraints.txt
	$(PIP) -e ".[all,test]"
	$(COMPILE)
	touch .venv/installed $@
