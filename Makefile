# The few commands of this repository. `make demo` and `make test` set up what they need.
#
# Stamps keep a second run from setting anything up again: the virtual environment, torch in
# it (large, so a step of its own that other changes do not repeat), and the browser for the page.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SETUP  := $(VENV)/.setup
TORCH  := $(VENV)/.torch
DEV    := $(VENV)/.dev
BROWSER := $(VENV)/.browser
KAFKA  := $(VENV)/kafka
KEYCLOAK := $(VENV)/keycloak
CLICKHOUSE := $(VENV)/.clickhouse
DEPLOYING := $(VENV)/.deploying
FRAMEWORKS := $(VENV)/.frameworks
LOWEST := $(VENV)/lowest/.installed
NEWEST := $(VENV)/newest/.installed

# What is built from source takes minutes, and is kept for all clones, by version.
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rung
HELM_VERSION  := v3.22.0
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
HELM   := $(CACHE)/helm-$(HELM_VERSION)/helm
MINIO  := $(CACHE)/minio-$(MINIO_VERSION)/minio
KEYCLOAK_VERSION := $(shell sed -n 's:.*<version>\(.*\..*\)</version>.*:\1:p' deploy/keycloak/pom.xml)
KEPT_KEYCLOAK := $(CACHE)/keycloak-$(KEYCLOAK_VERSION)
KEPT_MINIO := $(if $(wildcard $(MINIO)),$(BIN)/minio)

# Tests start hundreds of processes, which are to find what they import compiled, also where the
# environment says that nothing is to be kept, or elsewhere: an empty value says nothing.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX :=

.PHONY: demo cluster test setup .setup check test-fast test-processes test-stores test-ledger sim test-attacks test-e2e test-frameworks test-cluster test-horovod soak bench docs clean

# Run a real search on this machine and show its result.
demo: $(SETUP)
	$(BIN)/python -m rung.cli.local.demo

# The same on a cluster: Kafka, ClickHouse, S3, every service apart, two agents.
cluster: $(DEV) $(KAFKA) $(CLICKHOUSE)
	$(BIN)/python deploy/local/cluster

# What every change must pass: lint, types, layers, and all lanes of tests; LANES="fast ledger" runs
# these alone. It ends with a table of their times. A test that failed and passes when it is repeated
# is listed there as FLAKY; more than three fail the run, and with RUNG_REPEAT=0 one does.
LANES := setup check fast processes stores ledger sim attacks e2e frameworks cluster horovod
test: | $(BIN)/python
	MAKE="$(MAKE)" $(BIN)/python tests/lanes.py run $(LANES)

# Everything that the lanes need, several things at a time: most of it waits for the network.
setup:
	$(MAKE) --jobs 4 .setup
.setup: $(DEV) $(DEPLOYING) $(BROWSER) $(CLICKHOUSE) $(KAFKA) $(KEYCLOAK) $(FRAMEWORKS) $(LOWEST) $(NEWEST) $(KEPT_MINIO)

# Lint, format, strict types, layers; advisories of the pinned packages, where there is a source.
check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=$(ROOTS) $(BIN)/python -c "import rung; from importlinter.cli import lint_imports_command as lint; lint()"
	$(BIN)/python deploy/advisories.py constraints.txt $(VENV)/.advisories

# Pure parts and single services. Folders that are other lanes' as a whole are not even imported;
# test_layout.py checks that they are.
REPEATED := $(BIN)/python tests/lanes.py pytest
PYTEST := $(REPEATED) $(BIN)/pytest
OTHER_LANES := attacks e2e keras lightning sim tensorflow_loop transformers
SHORT := not e2e and not stores and not ledger and not sim and not attacks and not cluster and not horovod
# Files of the fast lane lie in memory where there are 4 GiB for them, and go with their tests:
# what a gateway's start waits for is the disk.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk '$$4 > 4194304 && $$NF == "/dev/shm" {print $$NF}')
test-fast: $(DEV) $(DEPLOYING) $(CLICKHOUSE) $(KEPT_MINIO)
	TMPDIR=$(or $(MEMORY),$(TMPDIR)) $(PYTEST) -o tmp_path_retention_policy=failed \
	    -m "not processes and $(SHORT)" -n 3 $(OTHER_LANES:%=--ignore tests/%)

# An agent with trial processes, `rung up`, services, a gateway under hostile connections: short, each by itself.
test-processes: $(DEV)
	$(PYTEST) -m "processes and $(SHORT)" -n 3 tests/agent tests/cli tests/deploy tests/gateway tests/tuning

# Series in chDB and on a ClickHouse server, objects in a folder and on S3: each against the same tests.
test-stores: $(DEV) $(CLICKHOUSE) $(KEPT_MINIO)
	$(PYTEST) -m stores -n 3 tests/metrics tests/storage

# The ledger's adapters against one conformance suite; all that can be altered in a sealed ledger.
test-ledger: $(DEV) $(KAFKA)
	$(PYTEST) -m ledger -n 3 --dist loadfile

# Seeded simulations of the whole system, with faults; the collector against its reference.
sim: $(DEV)
	$(PYTEST) -m sim -n 2

# Generated attacks, half a minute a module, others for each commit: RUNG_ATTACK_SECONDS=600 for
# longer, and RUNG_ATTACK_SEED for the same ones again.
COMMIT := $(shell git rev-parse HEAD 2>/dev/null | cut -c 1-7)
test-attacks: export RUNG_ATTACK_SEED := $(or $(RUNG_ATTACK_SEED),$(shell printf %d 0x$(or $(COMMIT),1)))
test-attacks: $(DEV)
	@echo "RUNG_ATTACK_SEED=$(RUNG_ATTACK_SEED)"
	$(PYTEST) -m attacks -n 2 --dist loadfile

# Real processes, killed at bad moments. TensorFlow and what torch compiles with bring an LLVM each,
# and one process cannot hold both.
TENSORFLOW := tests/tensorflow_loop tests/keras/test_exact.py
test-e2e: $(DEV) $(BROWSER) $(CLICKHOUSE) $(KEYCLOAK) $(FRAMEWORKS)
	$(PYTEST) -m "e2e and not soak" -n 3 --dist loadfile $(TENSORFLOW:%=--ignore %)
	$(PYTEST) -m "e2e and not soak" -n 2 --dist loadfile $(TENSORFLOW)

# Keras, TensorFlow, Lightning and Transformers in the lowest versions that are declared, and in the
# newest where that is not pinned: private interfaces, and a trial of each that is killed at every step.
test-frameworks: $(LOWEST) $(NEWEST)
	$(REPEATED) $(VENV)/lowest/bin/python -m pytest -m versions -n 2 --dist loadfile $(TENSORFLOW:%=--ignore %) tests/keras tests/lightning tests/transformers
	$(REPEATED) $(VENV)/lowest/bin/python -m pytest -m versions $(TENSORFLOW)
	$(REPEATED) $(VENV)/newest/bin/python -m pytest -m versions tests/transformers

# The services apart, on Kafka, ClickHouse and an S3 server.
test-cluster: $(FRAMEWORKS) $(KAFKA) $(CLICKHOUSE)
	$(PYTEST) -m cluster -n 2 --dist loadfile

# Horovod's ranks, also under kills, on one agent and on a cluster's two; without a wheel for this
# torch the tests say so, and skip.
test-horovod: $(DEV) $(KAFKA) $(CLICKHOUSE)
	$(PYTEST) -m horovod

# The long forms of what `make test` does shortly, about three hours: simulations, generated attacks,
# faults on a cluster, kills beside trainings; and what is built from source for it, MinIO and Horovod.
# RUNG_ATTACK_SEED, RUNG_FAULTS_SEED and RUNG_OUTLIVE_SEED repeat them.
soak: export RUNG_SIM_SEEDS := 2000
soak: export RUNG_ATTACK_SECONDS := 1200
soak: export RUNG_FAULTS := 500
soak: export RUNG_KILLS := 50
soak: export RUNG_OUTLIVE_SECONDS := 600
soak: $(FRAMEWORKS) $(KAFKA) $(CLICKHOUSE) $(BIN)/minio
	$(BIN)/pytest -m sim -n 2 --timeout 7200 tests/sim
	$(MAKE) test-attacks
	$(BIN)/pytest -m stores tests/storage
	$(BIN)/pytest -m cluster tests/cluster/test_faults.py tests/cluster/test_outlive.py
	$(BIN)/pytest -m e2e tests/e2e/test_kills.py tests/e2e/test_outlive.py
	$(BIN)/pytest -m soak -n 3 --dist loadfile $(TENSORFLOW:%=--ignore %)
	$(BIN)/pytest -m soak -n 2 --dist loadfile $(TENSORFLOW)
	deploy/horovod/build $(VENV) --no-install
	$(MAKE) test-horovod

# Speeds, each as a ratio against a named peer or limit, and a table of the figures that have aims.
# BENCH="search.scheduler gateway.show" runs these alone. It fails behind the table where a script missed an aim.
BENCH := $(subst /,.,$(patsubst benchmarks/%.py,%,$(filter-out %/sitecustomize.py,$(wildcard benchmarks/*/*.py))))
bench: export RUNG_FIGURES := $(CURDIR)/$(VENV)/figures.jsonl
bench: $(DEV)
	$(INSTALL) --group bench
	: > $(RUNG_FIGURES)
	failed=; for name in $(BENCH); do \
	  echo "== $$name"; $(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; \
	done; \
	$(BIN)/python -m benchmarks.figures $(RUNG_FIGURES); \
	test -z "$$failed" || { echo "Missed an aim, or failed:$$failed"; exit 1; }

# The documents that are made from the code.
docs: $(DEV)
	$(BIN)/python -m rung.events asyncapi > docs/asyncapi.json
	$(BIN)/python -m rung.events page > docs/EVENTS.md
	$(BIN)/python -m rung.config > docs/EXPERIMENT_FILE.md
	$(BIN)/python -m rung.rights > docs/RIGHTS.md
	# docs/openapi-v1.json is what the last release promises: written at a release, see docs/API.md.

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
ROOTS := $(subst $(SPACE),:,$(wildcard foundation worker cli sim services/*))

# uv links what it has fetched once into each environment, which takes seconds.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rung needs Python 3.11 or newer; try: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt uv

$(TORCH): constraints.txt | $(BIN)/python
	$(INSTALL) torch torchdata numpy
	touch $@

$(SETUP): pyproject.toml constraints.txt $(TORCH)
	$(INSTALL) --editable ".[one-machine,examples]"
	touch $@

$(DEV): $(SETUP)
	$(INSTALL) --editable ".[cluster,horovod]" --group dev
	touch $@

# Keras on TensorFlow, Lightning and Transformers, for the tests of their front doors.
$(FRAMEWORKS): $(DEV)
	$(INSTALL) --group frameworks
	touch $@

# Over this environment, so that torch is there once.
$(LOWEST) $(NEWEST): $(VENV)/%/.installed: deploy/%.txt $(FRAMEWORKS)
	$(BIN)/python -m venv --clear --without-pip $(VENV)/$*
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(\"" + sysconfig.get_path("purelib") + "\")")' \
	  > "$$($(VENV)/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth"
	$(BIN)/uv pip install --quiet --python $(VENV)/$*/bin/python --no-deps --requirement $<
	touch $@

# The page's tests drive a real Chromium; on Debian and its kin root may install it.
$(BROWSER): | $(BIN)/python
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || { apt-get update -qq && apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || { echo "The tests of the page need Chromium: install it, then make test again."; exit 1; }
	touch $@

# Apache Kafka as plain jars; without Maven or Java its tests say so, and skip.
$(KAFKA): deploy/kafka/pom.xml | $(BIN)/python
	if command -v mvn >/dev/null && command -v java >/dev/null; then \
	  mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$@; \
	else echo "No Maven or no Java: Apache Kafka is left out."; mkdir -p $@; fi
	touch $@

# Keycloak, the identity provider of the tests, built for its database in memory, which takes longer
# than its start; without Maven or Java they say so, and skip. After Kafka: what Maven fetches for both
# is fetched once, and two processes of it do not share its repository safely.
$(KEYCLOAK): deploy/keycloak/pom.xml | $(BIN)/python $(KAFKA)
	if command -v mvn >/dev/null && command -v java >/dev/null; then \
	  $(MAKE) $(KEPT_KEYCLOAK)/.built && rm -rf $@ && ln -s $(KEPT_KEYCLOAK) $@; \
	else echo "No Maven or no Java: Keycloak is left out."; mkdir -p $@; fi
	touch $@

$(KEPT_KEYCLOAK)/.built:
	mvn -q -B -f deploy/keycloak/pom.xml dependency:unpack-dependencies -DoutputDirectory=$(@D) \
	  -DmarkersDirectory=$(@D)/.unpacked
	$(@D)/keycloak-$(KEYCLOAK_VERSION)/bin/kc.sh build --db=dev-mem
	touch $@

# A ClickHouse server; on Debian and its kin root may install it.
$(CLICKHOUSE): | $(BIN)/python $(BROWSER)
	command -v clickhouse-server >/dev/null || command -v clickhouse >/dev/null \
	  || { apt-get update -qq && apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends clickhouse-server >/dev/null; } \
	  || { echo "The tests of the cluster need a ClickHouse server: install it, then make test again."; exit 1; }
	touch $@

# What holds the chart and the alerts to their formats; a test that lacks its tool says so.
$(DEPLOYING): | $(BIN)/python $(CLICKHOUSE)
	command -v go >/dev/null && $(MAKE) $(HELM) && ln -sf $(HELM) $(BIN)/helm || true
	command -v promtool >/dev/null || { cd $(VENV) && apt-get download -qq prometheus \
	  && dpkg-deb -x prometheus_*.deb prom && cp prom/usr/bin/promtool bin/; } || true
	touch $@

$(HELM):
	GOBIN=$(@D) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

# MinIO from its source, for no package carries it: `make soak` builds it. Where none is kept, the
# tests of `make test` say so, and SeaweedFS is the S3 server of all others.
$(BIN)/minio: $(MINIO) | $(BIN)/python
	ln -sf $< $@

$(MINIO):
	GOBIN=$(@D) go install github.com/minio/minio@$(MINIO_VERSION)
