# SPDX-License-Identifier: Apache-2.0
# `make` lists the targets. Everything works on a fresh Debian 12 with git, Go and root.

export CGO_ENABLED = 0

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
ROOT_GO := $(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 go

CLANG ?= clang-19
# It leaves the BTF.
STRIP ?= llvm-strip-19 --strip-debug
MULTIARCH := /usr/include/$(shell uname -m)-linux-gnu
# No path of this directory gets into an object, so that every checkout builds the same bytes.
BPF_FLAGS := -O2 -g -Wall -Werror -target bpf -mcpu=v3 -Ibpf/include -idirafter $(MULTIARCH) -ffile-prefix-map=$(CURDIR)=. -fdebug-compilation-dir=.
HEADERS := $(wildcard bpf/include/kerb/*.h)
CHAIN := bpf/chain.tc.o bpf/chain.xdp.o bpf/chain.xdp-frags.o bpf/kernel_drops.o
# Programs that are no modules (those have a kerb.yaml): plain C to plain object.
PLAIN := modules/classifier/inference/engine.bpf.o $(patsubst %.c,%.o,$(shell find bench -name '*.bpf.c' | while read f; do [ -e $$(dirname $$f)/kerb.yaml ] || echo $$f; done))

# Kernels that the kernel module is for.
KMOD_KERNELS := 6.1,6.1-rt,6.12,6.12-rt

.PHONY: images helm test-helm test-monitors test-cosign help costs setup bpf lib packages generate build fmt lint lint-setup vet unit test test-setup suites-setup kernels-setup test-together test-most test-alone test-load test-ml test-systemd test-dist dist test-ui page-costs page-growth ui ml models test-kernels test-kmod test-underlay test-soak test-oakestra kube-api test-kube-api test-fleet kube-setup kube-programs kube-up kube-down test-kube test-kube-long test-conformance conformance-programs test-combinations test-containers test-libraries test-suites test-parser test-upgrade demo demo-check demo-build demo-setup clean
.DEFAULT_GOAL := help

# A target is listed under the group that its text begins with.
help: ## Develop: this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { i = index($$2, ": "); g = substr($$2, 1, i - 1); \
	    list[g] = list[g] sprintf("  make %-14s %s\n", $$1, substr($$2, i + 2)) } \
	  END { n = split("Build Test Run Develop", groups, " "); for (i = 1; i <= n; i++) print groups[i] "\n" list[groups[i]] }' \
	  $(MAKEFILE_LIST)

setup: ## Build: install what building needs (apt)
	@scripts/setup build

test-setup:
	@scripts/setup test

suites-setup:
	@scripts/setup suites

kernels-setup:
	@scripts/setup kernels

bpf: $(CHAIN) $(PLAIN) packages ## Build: compile the data planes that are older than their sources

lib: ## Build: the C library for programs that receive packets, lib/intercept/libkerb-intercept.a
	@$(MAKE) --no-print-directory -s -C lib/intercept CC=$(CLANG)

packages: $(CHAIN) modules/classifier/inference/engine.bpf.o
	@scripts/packages

bpf/chain.tc.o: bpf/chain.bpf.c $(wildcard bpf/chain_*.h) $(HEADERS)
	$(CLANG) $(BPF_FLAGS) -DKERB_HOOK_TC -c $< -o $@
	$(STRIP) $@
bpf/chain.xdp.o: bpf/chain.bpf.c $(wildcard bpf/chain_*.h) $(HEADERS)
	$(CLANG) $(BPF_FLAGS) -DKERB_HOOK_XDP -c $< -o $@
	$(STRIP) $@
bpf/chain.xdp-frags.o: bpf/chain.bpf.c $(wildcard bpf/chain_*.h) $(HEADERS)
	$(CLANG) $(BPF_FLAGS) -DKERB_HOOK_XDP -DKERB_XDP_FRAGS -c $< -o $@
	$(STRIP) $@

bpf/kernel_drops.o: bpf/kernel_drops.bpf.c $(wildcard bpf/chain_trace_*.h) $(HEADERS)
	$(CLANG) $(BPF_FLAGS) -DKERB_HOOK_TC -c $< -o $@
	$(STRIP) $@

modules/classifier/inference/engine.bpf.o: $(wildcard modules/classifier/*.h)

.SECONDEXPANSION:
%.bpf.o: %.bpf.c $$(wildcard $$(dir $$@)*.h) $(HEADERS)
	$(CLANG) $(BPF_FLAGS) -c $< -o $@

generate: ## Develop: write the generated Go files and test objects again
	go generate ./...

PROGRAMS := kerb kerb-bench kerb-cni kerb-kube-node kerb-nri kerb-kube-controller kubectl-kerb kerb-oakestra kerb-otlp

build: bpf ## Build: ./kerb, ./kerb-bench, ./kerb-cni, ./kerb-kube-node, ./kerb-nri, ./kerb-kube-controller, ./kubectl-kerb, ./kerb-oakestra, ./kerb-otlp; static binaries for amd64 and arm64, and manual pages, in dist/
	for program in $(PROGRAMS); do for arch in amd64 arm64; do \
	  GOARCH=$$arch scripts/build dist/$$program-linux-$$arch $$program || exit 1; done; \
	  cp dist/$$program-linux-$$(go env GOARCH) $$program; done
	go run ./internal/cli/man dist/man1

NFPM_VERSION := v2.48.0

dist: build ## Build: .deb and .rpm of kerb and kerb-bench, and SHA256SUMS, in dist/; KERB_SIGN_KEY= signs
	@[ -x out/nfpm ] || GOBIN=$(CURDIR)/out go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	scripts/dist

IMAGE_PROGRAMS := kerb kerb-cni kerb-kube-controller kerb-kube-node kerb-nri
images: bpf ## Build: the container image for amd64 and arm64, dist/kerb-image.tar, with SBOM; KERB_SIGN_KEY= signs
	for program in $(IMAGE_PROGRAMS); do for arch in amd64 arm64; do \
	  GOARCH=$$arch scripts/build dist/$$program-linux-$$arch $$program || exit 1; done; done
	scripts/images

HELM_VERSION := v3.22.0
out/helm:
	GOBIN=$(CURDIR)/out CGO_ENABLED=0 go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

helm: out/helm ## Build: deploy/kubernetes/install.yaml, of the chart in deploy/helm
	scripts/helm

test-helm: out/helm ## Test: the chart, and that install.yaml is what it renders
	KERB_HELM=$(CURDIR)/out/helm go test -count=1 ./deploy/helm

# What the ServiceMonitors of the chart are for.
OPERATOR := github.com/prometheus-operator/prometheus-operator
test-monitors: out/helm demo-setup kube-api ## Test: the ServiceMonitors of the chart, with the operator of Prometheus and Prometheus, several minutes the first time
	@command -v prometheus > /dev/null || scripts/setup test
	cd test/operator && go build -trimpath -ldflags '-s -w' -o $(CURDIR)/out/operator/ $(OPERATOR)/cmd/operator && \
	  rm -rf $(CURDIR)/out/operator/crds && cp -r $$(go list -m -f '{{.Dir}}' $(OPERATOR))/example/prometheus-operator-crd $(CURDIR)/out/operator/crds && \
	  chmod -R u+w $(CURDIR)/out/operator/crds
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_HELM=$(CURDIR)/out/helm KERB_KUBE_API=$(CURDIR)/out/kube-api \
	  KERB_OPERATOR=$(CURDIR)/out/operator go test -vet=off -count=1 -v -run '^TestMonitors$$' ./deploy/helm

fmt: ## Develop: format Go, and the changed lines of C, if the tools are installed
	gofmt -w $$(git ls-files -co --exclude-standard '*.go')
	@if [ -n "$(GOLANGCI)" ]; then echo golangci-lint fmt; $(GOLANGCI) fmt; \
	  else echo "the order of imports is left as it is: make lint-setup installs golangci-lint"; fi
	@if [ -n "$(CLANG_FORMAT)" ]; then $(CLANG_FORMAT) --force $(BASE) || [ $$? = 1 ]; else echo "C is left as it is: make lint-setup"; fi

# C is formatted where it differs from BASE: the commit that a branch began at, or on the main branch the one before.
BASE ?= $(shell [ "$$(git rev-parse HEAD)" != "$$(git rev-parse -q --verify origin/main)" ] && git merge-base HEAD origin/main 2>/dev/null || git rev-parse -q --verify HEAD~1 || echo HEAD)
CLANG_FORMAT = $(shell command -v git-clang-format-19 >/dev/null && echo git clang-format-19 --binary clang-format-19 --extensions c,h)

# golangci-lint, where it is installed: by make lint-setup, or otherwise on PATH.
GOLANGCI_VERSION := v2.15.0
GOLANGCI = $(or $(wildcard out/golangci-lint),$(shell command -v golangci-lint))

lint: vet ## Develop: vet, golangci-lint and the format of changed lines of C, if the tools are installed
	@if [ -n "$(CLANG_FORMAT)" ]; then $(CLANG_FORMAT) --diff $(BASE) || { echo "make fmt BASE=$(BASE)"; exit 1; }; \
	  else echo "clang-format-19 is not installed: make lint-setup"; fi
	@if [ -n "$(GOLANGCI)" ]; then echo golangci-lint run; $(GOLANGCI) run; else echo "golangci-lint is not installed: make lint-setup"; fi

lint-setup: ## Develop: install clang-format-19 (apt), and build golangci-lint in out/: several minutes
	@scripts/setup lint
	GOBIN=$(CURDIR)/out go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

vet: ## Develop: formatting, go vet, shell syntax
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted"; exit 1; }
	go vet ./...
	@for f in $$(git ls-files -co --exclude-standard scripts); do sh -n $$f || exit 1; done

# Packages whose tests measure, run threads at real-time priority or load all CPUs run alone. The others wait half of the time, for
# processes, timers and grace periods of the kernel, so four run at a time. Those that take long start first: at the end, none of them
# runs with CPUs to spare. Two of the tests of test/e2e send at real-time priority, and one of cmd/kerb measures a node at rest.
ALONE := ./bench ./bench/chain ./bench/firewall ./bench/intercept ./bench/paper ./bench/scale ./bench/swap ./intercept \
	./internal/lab/traffic ./kmod ./modules/intercept ./test/soak
ALONE_TEST := ^(TestUpgradeUnderLoad|TestPendulumInAFlood|TestNodeMemory)$$
LONG := ./test/e2e ./internal/agent ./modules/proxy ./integrations/oakestra ./internal/dataplane ./test/accelerator ./modules/firewall \
	./test/oakestra ./bench/tunnel ./modules/accelerator ./docs ./test/proxy
# The browser and container runtimes have targets of their own, which also install them: here their tests ran or were skipped by what a
# machine happens to have.
ELSEWHERE := ./test/ui ./integrations/containers
TEST := $(ROOT_GO) test -vet=off -ldflags=-s -timeout 25m -parallel 4 # vetted by lint; without symbols, linked in half the time

# What needs root, idle CPUs or more than a minute; also packages of which no test runs without root, as each takes half a second to
# link, and internal/lab/gobuild, which compiles the runtime of Go where the build cache is new. `make unit` runs everything else.
NOT_UNIT := ./bench/... ./cmd/... ./examples/... ./intercept ./internal/apply/fake ./internal/clsact ./internal/images \
	./internal/lab/ambient ./internal/lab/gobuild ./internal/lab/pintest ./internal/lab/tempdir ./internal/lab/testrun ./kmod ./sdk/model \
	./modules/intercept ./test/accelerator ./test/cluster ./test/combinations ./test/e2e ./test/kernels/smoke ./test/oakestra ./test/proxy \
	./test/soak ./test/systemd ./test/ui

# Eight packages at a time, as some wait for seconds and compute nothing; those that take longest first.
UNIT_LONG := ./integrations/kubernetes/node ./integrations/oakestra ./internal/cli ./internal/oci ./internal/server ./internal/store \
	./internal/pkgs ./internal/memtrim ./internal/samples ./test/repository
UNIT := KERB_COMPILED=1 go test -vet=off -ldflags=-s -short -timeout 5m -p 8 $(if $(SUDO),,-exec $(CURDIR)/scripts/unprivileged)

ifdef PKG
unit: bpf
	$(UNIT) $(if $(RUN),-count=1 -run '$(RUN)') $(PKG)
else
unit: bpf ## Test: the tests that need no root, in a minute; or PKG=./internal/plan RUN=TestName
	$(UNIT) $(UNIT_LONG) $$(go list ./... | grep -vxF "$$(go list $(NOT_UNIT))")
endif

ifdef PKG
test: demo-setup bpf
	$(TEST) -count=1 $(if $(RUN),-run '$(RUN)') $(PKG)
else
test: test-setup bpf vet ## Test: set up, compile, vet, and run the tests as root, but those with targets of their own; or PKG=./modules/firewall RUN=TestName
	@$(MAKE) --no-print-directory --keep-going test-together test-alone test-load
endif

# Python computes on one CPU: alongside the others, it takes what they leave.
test-together:
	@nice $(MAKE) --no-print-directory test-ml >out/test-ml.log 2>&1 & ml=$$!; trap 'kill $$ml' INT TERM; \
	  $(MAKE) --no-print-directory test-most; most=$$?; wait $$ml; ml=$$?; cat out/test-ml.log; [ $$most = 0 ] && [ $$ml = 0 ]

test-most:
	$(TEST) -p 4 -skip '$(ALONE_TEST)' $(LONG) $$(go list ./... | grep -vxF "$$(go list $(ALONE) $(ELSEWHERE))")

test-alone:
	$(TEST) -p 1 $(ALONE)

test-load:
	$(TEST) -p 1 -run '$(ALONE_TEST)' ./test/e2e ./cmd/kerb

test-ml:
	out/kerb-ml/bin/python -m pytest -q ml

COSIGN_VERSION := v3.1.3
out/cosign:
	GOBIN=$(CURDIR)/out CGO_ENABLED=0 go install github.com/sigstore/cosign/v3/cmd/cosign@$(COSIGN_VERSION)

test-cosign: out/cosign ## Test: what cosign 3 signs Kerb accepts, and the other way round; builds cosign the first time, several minutes; UPDATE=1 writes testdata
	KERB_COSIGN=$(CURDIR)/out/cosign KERB_UPDATE=$(UPDATE) go test -vet=off -count=1 -v -run 'Cosign$$|^TestWriteTestdata$$' ./internal/oci

test-systemd: ## Test: deploy/systemd/kerb.service as shipped, under this distribution's systemd in a container, with every built-in module
	@scripts/setup systemd
	@$(MAKE) --no-print-directory -s bpf
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_TEST_SYSTEMD=1 go test -vet=off -count=1 -timeout 15m ./test/systemd

test-dist: dist ## Test: the .deb and .rpm install, run, are upgraded and removed, in a container
	@scripts/setup systemd
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_TEST_SYSTEMD=1 KERB_DIST=$(CURDIR)/dist \
	  go test -vet=off -count=1 -timeout 15m -run TestHostPackages ./test/systemd

ui: ## Develop: build the page of `kerb ui` from the directory ui into internal/ui/dist; CHECK=1 compares instead
	@scripts/setup ui
	@scripts/ui $(if $(CHECK),-check)

test-ui: ## Test: the page of `kerb ui` in Chromium, on a node with traffic; FIGURES=1 writes the screenshots in docs/figures
	@scripts/setup browser
	@$(MAKE) --no-print-directory ui CHECK=1
	@$(MAKE) --no-print-directory -s bpf
	$(TEST) -count=1 $(if $(RUN),-run '$(RUN)') ./test/ui $(if $(FIGURES),-args -figures)

page-costs: ## Test: what the page costs, against its goals, on a machine at rest: 6 minutes; LENGTH=10m measures each state longer
	@scripts/setup browser
	@$(MAKE) --no-print-directory -s bpf
	@$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_PAGE=$(or $(LENGTH),1m) go test -vet=off -count=1 -timeout 3h -v -run '^TestCost' ./test/ui

page-growth: ## Test: whether agent, `kerb ui` and page grow while the page is open: over an hour; LENGTH=10m is shorter
	@scripts/setup browser
	@$(MAKE) --no-print-directory -s bpf
	@$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_PAGE_OPEN=$(or $(LENGTH),1h) go test -vet=off -count=1 -timeout 3h -v -run '^TestGrowth$$' ./test/ui

ml: ## Build: install kerb-ml, which trains and imports models, in out/kerb-ml
	@scripts/setup ml
	@echo "out/kerb-ml/bin/kerb-ml is there; \`kerb model import\` finds it by PATH or KERB_ML"

models: ml ## Develop: train the shipped models again
	out/kerb-ml/bin/kerb-ml train shipped --data bench/classifier/data -o modules/classifier/models

test-kernels: kernels-setup bpf ## Test: the kernel tests on 5.10, 6.1, 6.1-rt, 6.12 and the newest kernel, emulated; or KERNELS= PKGS= RUN= ARCH=arm64
	go run ./test/kernels $(if $(ARCH),-arch $(ARCH)) $(if $(KERNELS),-kernels $(KERNELS)) $(if $(PKGS),-pkgs '$(PKGS)') $(if $(RUN),-run '$(RUN)')

costs: kernels-setup bpf ## Test: what the verifier of 6.12, emulated, spends on chains, and what packets execute, against files in test/costs; UPDATE=1 writes them
	scripts/costs $(if $(UPDATE),-update)

test-kmod: kernels-setup bpf ## Test: the kernel module and bench intercept on 6.1, 6.1-rt, 6.12 and 6.12-rt, emulated; or KERNELS=
	KERB_BENCH_PROGRAMS=$(CURDIR)/bench/intercept/testdata go test -count=1 -run TestCompile ./bench/intercept
	go run ./test/kernels -kernels $(or $(KERNELS),$(KMOD_KERNELS)) -kmod kmod -pkgs ./kmod,./bench/intercept

test-underlay: kernels-setup bpf ## Test: the tunnel over WireGuard and XFRM interfaces, and with IPsec policies, on 6.1, emulated; or KERNELS=
	go run ./test/kernels -kernels $(or $(KERNELS),6.1) -pkgs -pkg-timeout 40m -timeout 45m \
	  -modules sha512_generic,drbg,gcm,ctr,ghash_generic,seqiv \
	  -run '^(TestTunnelOverBareIP|TestTunnelObeysIPsecPolicies)$$'

test-upgrade: demo-setup bpf ## Test: the agent of an earlier build is replaced by this one under traffic; FROM=COMMIT
	@[ -n "$(FROM)" ] || { echo "which one: make test-upgrade FROM=COMMIT" >&2; exit 2; }
	rm -rf out/earlier && mkdir -p out/earlier && git archive $(FROM) | tar -x -C out/earlier
	$(MAKE) --no-print-directory -C out/earlier -s bpf && cd out/earlier && \
	  if [ -x scripts/build ]; then scripts/build kerb kerb; else CGO_ENABLED=0 go build -o kerb ./cmd/kerb; fi
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_EARLIER=$(CURDIR)/out/earlier go test -vet=off -count=1 -v -run '^TestUpgradeOfBuild$$' ./test/e2e
	rm -rf out/earlier

test-soak: test-setup bpf ## Test: one hostile service of 20, all modules, against a counter alone: half an hour; or KERB_SOAK= (one run) KERB_SOAK_PAIRS=
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_SOAK=$(or $(KERB_SOAK),3m) KERB_SOAK_PAIRS=$(or $(KERB_SOAK_PAIRS),5) go test -vet=off -count=1 -v -timeout 3h ./test/soak

test-oakestra: test-setup bpf ## Test: an Oakestra cluster with three workers and 20 services, 200 random steps, kills: 20 minutes; or KERB_OAKESTRA_STEPS=, KERB_SEED=
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_SEED=$(KERB_SEED) KERB_OAKESTRA_STEPS=$(or $(KERB_OAKESTRA_STEPS),200) \
	  go test -vet=off -count=1 -v -timeout 1h ./test/oakestra
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_OAKESTRA_STEPS=1 go test -vet=off -count=1 -v -timeout 1h -run '^TestKilled' ./integrations/oakestra

test-containers: ## Test: containers of Docker, Podman and containerd as services, also the first packets: 2 minutes; RUN=
	@scripts/setup containers
	@$(MAKE) --no-print-directory -s bpf
	$(TEST) -count=1 $(if $(RUN),-run '$(RUN)') ./integrations/containers

test-libraries: test-setup bpf ## Test: the tests of Go's own network libraries, on accelerated connections: 2 minutes
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_LIBRARIES=1 go test -vet=off -count=1 -v -timeout 15m -run '^TestLibraries$$' ./test/accelerator

# SUITES: python, redis (both unless given), redis-cluster, redis-sentinel. PARTS: files of one of them, such as test_socket, or unit/protocol.
test-suites: suites-setup bpf ## Test: the network tests of CPython and the tests of Redis, on plain TCP and on accelerated connections: an hour and a half; or SUITES=python PARTS=test_socket
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_SUITES=$(or $(SUITES),python,redis) KERB_SUITE_PARTS="$(PARTS)" \
	  go test -vet=off -count=1 -v -timeout 4h -run '^TestSuites$$' ./test/accelerator

test-combinations: test-setup bpf ## Test: every two and three of the built-in modules together: 5 minutes
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_COMBINATIONS=1 go test -vet=off -count=1 -timeout 30m ./test/combinations

# Programs of Kubernetes, of the version of test/kube or of KUBE=VERSION.
KUBE_VERSION := $(or $(KUBE),v1.35.4)
IN_KUBE = $(if $(KUBE),scripts/kube-module $(KUBE) && cd out/kube-$(KUBE) && export GOFLAGS=-mod=mod,cd test/kube)
KUBE_FLAGS := -trimpath -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION)'
kube-api: ## Build: out/kube-api, etcd and the Kubernetes API server for tests: ten minutes the first time; or KUBE=VERSION
	$(IN_KUBE) && go build $(KUBE_FLAGS) -o $(CURDIR)/out/kube-api .

test-kube-api: demo-setup bpf kube-api ## Test: what speaks to Kubernetes, against a real API server; or KUBE=VERSION
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_KUBE_API=$(CURDIR)/out/kube-api \
	  go test -vet=off -ldflags=-s -count=1 -p 1 -timeout 25m ./integrations/kubernetes/api ./integrations/kubernetes/node ./bench/kube

# What the test cluster runs, besides etcd and the API server.
KUBE_BIN := out/cluster/bin
CONTAINERD := github.com/containerd/containerd/v2
CONTAINERD_VERSION = $(shell awk '$$2 == "$(CONTAINERD)" || $$1 == "$(CONTAINERD)" { sub(/ *\/\/.*/, ""); print $$NF }' test/containerd/go.mod)
kube-setup:
	@scripts/setup cluster

kube-programs: kube-setup bpf kube-api
	$(IN_KUBE) && go build $(KUBE_FLAGS) -o $(CURDIR)/$(KUBE_BIN)/kube ./cluster
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(KUBE_BIN)/image/pod ./test/cluster/pod
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(KUBE_BIN)/ ./test/cluster/prepare \
	  $(addprefix github.com/containernetworking/plugins/plugins/,main/bridge main/loopback ipam/host-local meta/portmap) \
	  github.com/containernetworking/cni/cnitool
	cd test/containerd && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X $(CONTAINERD)/version.Version=$(CONTAINERD_VERSION)' \
	  -o $(CURDIR)/$(KUBE_BIN)/containerd2/ $(addprefix $(CONTAINERD)/cmd/,containerd containerd-shim-runc-v2 ctr)
	for program in kerb kerb-cni kerb-kube-node kerb-nri; do scripts/build $(KUBE_BIN)/$$program $$program || exit 1; done
	$(if $(KUBELET),scripts/kube-module $(KUBELET) && cd out/kube-$(KUBELET) && GOFLAGS=-mod=mod go build $(subst $(KUBE_VERSION),$(KUBELET),$(KUBE_FLAGS)) \
	  -o $(CURDIR)/$(KUBE_BIN)/kube-$(KUBELET) ./cluster)

kube-up: kube-programs ## Run: a Kubernetes cluster on this machine, with Kerb on its nodes, one or NODES=3; test/cluster/cluster kubectl get pods
	$(SUDO) env LAYOUT=$(LAYOUT) KUBELET=$(KUBELET) test/cluster/cluster up $(NODES)

kube-down: ## Run: end the cluster of kube-up, and remove what it wrote
	$(SUDO) test/cluster/cluster down

test-kube: kube-programs images out/helm ## Test: Kerb on a cluster with kubelets: leaks, outages, uninstalling, the chart and its upgrade; NODES=, PODS=200, AUTONOMY=10m, LAYOUT=, KUBELET=v1.34.4, RUN=, KEEP=1
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_TEST_KUBE=1 PODS=$(PODS) NODES=$(NODES) KEEP=$(KEEP) \
	  AUTONOMY=$(AUTONOMY) LAYOUT=$(LAYOUT) KUBELET=$(KUBELET) \
	  go test -vet=off -ldflags=-s -count=1 -v -timeout 1h $(if $(RUN),-run '$(RUN)') ./test/cluster

# Kubernetes' own tests, what their pods run, and the name server.
conformance-programs: kube-programs
	@scripts/setup conformance
	$(IN_KUBE) && go test -vet=off -c $(KUBE_FLAGS) -o $(CURDIR)/$(KUBE_BIN)/conformance ./conformance
	cd test/kube && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(CURDIR)/$(KUBE_BIN)/ k8s.io/kubernetes/test/images/agnhost
	cd test/coredns && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(CURDIR)/$(KUBE_BIN)/coredns .
	test/cluster/images $(KUBE_BIN)

test-conformance: conformance-programs ## Test: Kubernetes' conformance tests of networks, with modules of Kerb on all pods: half an hour; RUN=
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_TEST_CONFORMANCE=1 KEEP=$(KEEP) \
	  go test -vet=off -ldflags=-s -count=1 -v -timeout 2h -run '$(or $(RUN),^TestConformance$$)' ./test/cluster

test-kube-long: test-kube test-conformance test-fleet ## Test: all of Kubernetes: nodes, outages, conformance, a fleet: two hours

test-fleet: demo-setup bpf kube-api ## Test: 1,000 nodes against a real API server, measured, in minutes; or KERB_FLEET=
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_KUBE_API=$(CURDIR)/out/kube-api KERB_FLEET=$(or $(KERB_FLEET),1000) \
	  go test -vet=off -ldflags=-s -count=1 -v -timeout 30m -run '^TestFleet$$' ./integrations/kubernetes/node

test-parser: test-setup bpf ## Test: the parser against its model on 10,000,000 frames: half an hour; or KERB_PARSE_FRAMES=
	$(SUDO) env "PATH=$(PATH)" CGO_ENABLED=0 KERB_PARSE_FRAMES=$(or $(KERB_PARSE_FRAMES),10000000) \
	  go test -vet=off -count=1 -v -timeout 3h -run '^TestDifferential$$' ./bpf/bpftest

demo: demo-build ## Run: set up, build, and watch modules at work on three services; KEEP=1 stays up
	@$(SUDO) ./kerb demo $(if $(filter-out 0,$(KEEP)),--keep)

demo-check: demo-build ## Run: the demos for scripts: fails unless every step shows what it should
	@$(SUDO) ./kerb demo --check
	@$(SUDO) ./kerb demo sign --check
	@$(SUDO) ./kerb demo rpl --check
	@$(SUDO) ./kerb demo controller --check
	@if command -v redis-server > /dev/null; then $(SUDO) ./kerb demo mesh --check; \
	  else echo "kerb demo mesh is left out: apt-get install redis-server redis-tools"; fi

# Only for this machine, and without what only the tests need.
demo-build: demo-setup
	@echo "compiling the data planes"
	@$(MAKE) --no-print-directory -s bpf
	@echo "building ./kerb and ./kerb-bench (the first time takes a minute or two)"
	@scripts/build kerb kerb && scripts/build kerb-bench kerb-bench

demo-setup:
	@scripts/setup demo

clean: ## Build: remove everything that was built
	rm -rf dist out $(PROGRAMS)
	find bpf bench examples internal lib modules test -name '*.o' -delete
	rm -f lib/intercept/*.a bpf/objects.zip
