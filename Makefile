# make demo   sets everything up, makes an exam and predicts it
# make test   sets everything up and passes the tests
# make test-quick  the unit tests: no Debian packages, under two minutes
# make hospital  an archive (Orthanc), a node and a viewer (OHIF) on this computer, with the demo's exam; Debian only
# make check  formatting, lint, imports between rooms, types
# make docs   writes the documentation site to build/site; open build/site/index.html
# make wheel  builds the wheel, installs it in an empty environment outside the repository, and tries it
# make attack attacks mm3d with broken files, kills and full disks: hours; ATTACK="--share 0.01" is a part
# make bench  measures, and writes docs/benchmarks.md
# make bench BASE=<commit>  measures this tree against another commit: a quarter of an hour
# make bench-full  measures full-size volumes: half an hour, 13 GB; also with BASE
#
# Every target makes .venv and installs what it needs; a second run installs nothing.

PYTHON ?= python3
BIN := .venv/bin
# The constraints also hold inside pip's isolated build environments.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Measured here: BLAS threads of numpy and torch's own get in each other's way.
export OPENBLAS_NUM_THREADS := 1

ATTACK ?=

.PHONY: demo hospital test test-quick attack check format docs wheel bench bench-full clean

demo: .venv/run
	$(BIN)/mm3d demo

hospital: .venv/dev .venv/ohif
	$(BIN)/python tools/hospital.py .venv/ohif/package/dist hospital

# Files of tests side by side, one thread each: on two cores that is faster than one after the other with two threads.
# Debian starts orthanc as a service when it is installed; the tests start their own.
test: .venv/dev .venv/ohif
	@command -v c++ >/dev/null || { echo "installing g++, which torch.compile needs"; apt-get update -qq && apt-get install -qq -y g++; }
	@command -v dciodvfy >/dev/null || { echo "installing dicom3tools, which checks DICOM files"; apt-get update -qq && apt-get install -qq -y dicom3tools; }
	@command -v dsrdump >/dev/null || { echo "installing dcmtk, which reads and sends DICOM"; apt-get update -qq && apt-get install -qq -y dcmtk; }
	@PATH="$$PATH:/usr/sbin" command -v Orthanc >/dev/null || { echo "installing orthanc, an archive that reports are sent to"; apt-get update -qq && apt-get install -qq -y orthanc && { systemctl disable --now orthanc 2>/dev/null || true; }; }
	@test -e /usr/share/orthanc/plugins/libOrthancDicomWeb.so || { echo "installing orthanc's DICOMweb"; apt-get update -qq && apt-get install -qq -y orthanc-dicomweb; }
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { echo "installing nginx, which serves OHIF's pages"; apt-get update -qq && apt-get install -qq -y nginx-light && { systemctl disable --now nginx 2>/dev/null || true; }; }
	@command -v openssl >/dev/null || { echo "installing openssl, which makes certificates for tests"; apt-get update -qq && apt-get install -qq -y openssl; }
	@command -v chromium >/dev/null || { echo "installing chromium, which opens the report"; apt-get update -qq && apt-get install -qq -y chromium; }
	@command -v firefox-esr >/dev/null || { echo "installing firefox-esr, which opens the report, too"; apt-get update -qq && apt-get install -qq -y firefox-esr; }
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile

test-quick: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile -m "not slow"

attack: .venv/dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m attack $(ATTACK)

check: .venv/dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Without network; a warning, such as a dead link, is an error.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mkdocs build --quiet --strict

wheel: .venv/dev
	$(BIN)/python tools/try_wheel.py

bench: .venv/bench
	$(BIN)/python benchmarks/$(if $(BASE),against.py $(BASE),run.py) --write docs/benchmarks.md

bench-full: .venv/bench
	$(BIN)/python benchmarks/$(if $(BASE),against.py $(BASE),run.py) --full-size --write docs/benchmarks.md

clean:
	rm -rf .venv build dist demo

# What running needs, and what developing needs on top; each stamp is made anew when the requirements change.
.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mm3d needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "installing mm3d and PyTorch into .venv, which takes some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# OHIF's pages, built by its makers; only the viewer's tests and `make hospital` need them.
.venv/ohif: | .venv/run
	@command -v npm >/dev/null || { echo "installing npm, which gets the viewer OHIF"; apt-get update -qq && apt-get install -qq -y npm; }
	rm -rf $@.new && mkdir $@.new && cd $@.new && npm pack --silent @ohif/app@3.13.2 && tar xzf ohif-app-3.13.2.tgz
	rm -rf $@ && mv $@.new $@

.venv/bench: .venv/run
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

.venv/dev: .venv/run
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@
