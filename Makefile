# Rubelet's chores. `make test` and `make run` install what they need and work on a fresh machine.

export CARGO_TARGET_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/rubelet/target
export PATH := $(PATH):$(HOME)/.cargo/bin
export RUSTDOCFLAGS ?= -D warnings

# Cargo profile of `make run`: release or dev (quicker to build).
PROFILE ?= release
profile_dir = $(CARGO_TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

.PHONY: help
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make run        a private containerd, rubelet and a sample pod; Ctrl-C takes it all down
.PHONY: run
run:
	@parts/prepare rust base-images >/dev/null
	@cargo build --profile $(PROFILE) -p rubelet -p testkit --bins
	@RUBELET_BIN=$(profile_dir)/rubelet $(profile_dir)/try-node

## make test       format, lints, documentation, tests on real parts; ALL=1 as CI: the longest too
.PHONY: test
test:
	@parts/prepare rust >/dev/null
	@$(MAKE) --no-print-directory -j2 parts programs
	$(CARGO_TARGET_DIR)/debug/xtask test

## make lint       format, lints, documentation
.PHONY: lint
lint: checkout
	cargo fmt --all --check
	cd fuzz && cargo fmt --check
	cargo run --quiet --package xtask -- tidy
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace --test '*' -- -D warnings
	cargo doc --workspace --no-deps --quiet

# In one go, as `xtask test` does it: crates have other features beside tests than without.
.PHONY: programs
programs: lint
	cargo build --quiet --workspace --bins --tests

## make parts      the real programs and images that the tests run on
.PHONY: parts
parts: checkout
	@parts/prepare rust core images device-plugin dra-driver csi-sanity

# Cargo takes what another checkout built for its own, but the paths in it are that checkout's.
.PHONY: checkout
checkout:
	@[ "$$(cat $(CARGO_TARGET_DIR)/checkout 2>/dev/null)" = "$(CURDIR)" ] || { \
		find crates tests xtask -name '*.rs' -exec touch {} + && \
		mkdir -p $(CARGO_TARGET_DIR) && echo "$(CURDIR)" >$(CARGO_TARGET_DIR)/checkout; }

## make goldens    all golden pods, the unusual ones too; KUBELET=go runs them under the Go kubelet
.PHONY: goldens
goldens: parts
	GOLDENS=all cargo test --package tests --test goldens

## make swap-test  the Go kubelet and rubelet take turns on one node, 20 rounds
.PHONY: swap-test
swap-test: parts
	ROUNDS=20 cargo test --package tests --test swap

## make restart-compare  what kill -9 changes on a node under rubelet, next to the Go kubelet; WAIT=s, FIRST=rubelet, SHOW=1
.PHONY: restart-compare
restart-compare: parts
	cargo build --package rubelet
	WAIT=$(or $(WAIT),75) cargo test --package tests --test restart_compare -- --nocapture

## make crash-test  the kubelet killed at random under 30 pods, SEEDS nodes (10), ROUNDS kills each (12); pods
##                  that run once under KILLS (200) kills and STOPS (100) SIGTERMs
.PHONY: crash-test
crash-test: parts
	cargo build --package rubelet
	KILLS=$${KILLS:-200} STOPS=$${STOPS:-100} cargo test --package tests --test crash once -- --nocapture
	SEEDS=$${SEEDS:-10} ROUNDS=$${ROUNDS:-12} cargo test --package tests --test crash killing -- --nocapture
	SEEDS=$${NODES:-2000} cargo test --package pods --test life simulation -- --nocapture

## make soak       pods that come and go, ROUNDS (40) times PODS (20): memory, descriptors, series stay; KUBELET=go
.PHONY: soak
soak: parts
	@cargo build --profile $(PROFILE) -p rubelet
	RUBELET_BIN=$(profile_dir)/rubelet ROUNDS=$${ROUNDS:-40} PODS=$${PODS:-20} cargo test --package tests --test churn -- --nocapture

## make garbage-test  garbage of a real runtime that takes minutes; KUBELET=go
.PHONY: garbage-test
garbage-test: parts
	cargo build --package rubelet
	cargo test --package tests --test garbage_slow -- --nocapture

## make hung-test  volumes that never answer beside twenty real pods
.PHONY: hung-test
hung-test: parts
	@cargo build --profile $(PROFILE) -p rubelet
	RUBELET_BIN=$(profile_dir)/rubelet cargo test --package tests --test hung_volumes -- --nocapture

## make userns-test  pods with users of their own under both kubelets
.PHONY: userns-test
userns-test: parts
	@parts/prepare runc >/dev/null
	cargo test --package tests --test userns -- --nocapture

## make probe-load  500 probes a second on one node; PODS=n (ten probes a second each), SECONDS=n; KUBELET=go
.PHONY: probe-load
probe-load: parts
	@cargo build --profile $(PROFILE) -p rubelet
	RUBELET_BIN=$(profile_dir)/rubelet PODS=$${PODS:-50} SECONDS=$${SECONDS:-60} cargo test --package tests --test probes -- --nocapture --test-threads=1

## make server-compare  ask the Go kubelet and rubelet the same, thousands of times; ASKS=n, SEED=n
.PHONY: server-compare
server-compare: parts
	cargo build --package rubelet
	ASKS=$${ASKS:-5000} cargo test --package tests --test server_compare -- --nocapture

## make metrics-compare  both kubelets' metrics and summaries after the same life of the same pods; PAGES=folder
.PHONY: metrics-compare
metrics-compare: parts
	cargo test --package tests --test metrics_compare -- --nocapture

## make config-compare  give the Go kubelet and rubelet the same command lines and files; CASES=n, STARTED=n, SEED=n
.PHONY: config-compare
config-compare: parts
	cargo build --package rubelet
	CASES=$${CASES:-3000} STARTED=$${STARTED:-300} cargo test --package tests --test config_compare -- --nocapture --test-threads=1

## make pod-compare  give the Go kubelet and rubelet the same pods, drawn by chance; PODS=n, SEED=n
.PHONY: pod-compare
pod-compare: parts
	cargo build --package rubelet
	cargo test --package tests --test pod_compare

## make access-test  every route by every method and every caller, reviewed by a real API server; KUBELET=go
.PHONY: access-test
access-test: parts
	cargo build --package rubelet
	LONG=1 cargo test --package tests --test access -- --nocapture

## make log-flood   follow a million numbered lines while the log rotates (5 minutes)
.PHONY: log-flood
log-flood: parts
	LOG_LINES=1000000 cargo test --package tests --test logs million -- --nocapture

## make server-limits  a million random requests; memory and metric series stay flat
.PHONY: server-limits
server-limits: parts
	REQUESTS=1000000 cargo test --package tests --test server_limits -- --nocapture

## make attack      hostile callers, pods and plugins against both kubelets; SECONDS=n each, ATTACK=name,…; KUBELET=go
.PHONY: attack
attack: parts
	@cargo build --profile $(PROFILE) -p rubelet
	RUBELET_BIN=$(profile_dir)/rubelet cargo test --package tests --test attack -- --nocapture

## make kubectl-test  real kubectl logs, exec, cp, attach, port-forward; KUBELET=go
.PHONY: kubectl-test
kubectl-test: parts
	cargo test --package tests --test kubectl

## make fuzz        parsers of foreign bytes under libFuzzer, by coverage; MINUTES=n or SECONDS=n each, TARGET=name,…; KEEP=1
.PHONY: fuzz
fuzz:
	@parts/prepare rust >/dev/null
	cargo run --quiet --package xtask -- fuzz

## make top-test   kubectl top through a real metrics-server; KUBELET=go
.PHONY: top-test
top-test: parts
	@parts/prepare metrics-server >/dev/null
	cargo build --package rubelet
	cargo test --package tests --test top -- --nocapture

## make bench      the Go kubelet and rubelet, one after the other: time, memory, CPU; PODS=n
.PHONY: bench
bench: parts
	@cargo build --profile $(PROFILE) -p rubelet -p testkit --bins
	@RUBELET_BIN=$(profile_dir)/rubelet $(profile_dir)/bench-pods

## make node-e2e   Kubernetes' node e2e suite; LABELS, FOCUS, SKIP, PROCS choose specs; KUBELET=go; RECORD=1
.PHONY: node-e2e
node-e2e:
	@parts/prepare rust core images node-e2e >/dev/null
	@cargo build --profile $(PROFILE) -p rubelet -p testkit --bins
	@RUBELET_BIN=$(profile_dir)/rubelet $(profile_dir)/node-e2e

## make vm-test    QEMU, systemd, cgroup v2: both cgroup drivers; the first run makes the machine; KUBELET=go; RECORD=1
.PHONY: vm-test
vm-test:
	@parts/prepare rust core images vm >/dev/null
	@cargo build --profile $(PROFILE) -p rubelet
	@RUBELET_BIN=$(profile_dir)/rubelet cargo test --package tests --test vm -- --test-threads=1

## make clean-run  remove what a killed `make run` or test left on this machine
.PHONY: clean-run
clean-run:
	@cargo run --quiet --package testkit --bin try-node -- --clean
