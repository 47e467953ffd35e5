# kkbundle: `make demo` shows the main job on real input, `make test` passes the tests. Both need Go, git and make; `make test-full` also gcc.
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# A tag v1.2.3 is version v1.2.3, later commits v1.2.3-COUNT-gCOMMIT; without any tag v0.0.0-COUNT-gCOMMIT.
VERSION  := $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || \
	{ commit=$$(git describe --always --exclude='*' --abbrev=12 --dirty 2>/dev/null) && echo "v0.0.0-$$(git rev-list --count HEAD)-g$$commit"; } || echo dev)
# The same for dpkg and rpm, which sort 1.2.3~rc.1 < 1.2.3 < 1.2.3+4.gCOMMIT.
PACKAGE_VERSION = $(shell sed -E 's/^v//; s/^([^0-9])/0.0.0+\1/; s/-([0-9]+)-g([0-9a-f]+)/+\1.g\2/; s/-dirty$$/.dirty/; s/-/~/; s/-/./g' <<< "$(VERSION)")
CACHE    := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)
TOOLS    := $(CACHE)/kkbundle-tools
LINT_VERSION := v2.15.0
LINT     := $(TOOLS)/golangci-lint-$(LINT_VERSION)
CONFORMANCE_VERSION := v0.0.0-20260831232431-97274622c111
VULN_VERSION := v1.9.0
VULN     := $(TOOLS)/govulncheck-$(VULN_VERSION)
NFPM_VERSION := v2.45.0
NFPM     := $(TOOLS)/nfpm-$(NFPM_VERSION)
CONTROLLER_GEN_VERSION := v0.21.0
CONTROLLER_GEN := $(TOOLS)/controller-gen-$(CONTROLLER_GEN_VERSION)
GREMLINS_VERSION := v0.6.0
GREMLINS := $(TOOLS)/gremlins-$(GREMLINS_VERSION)
# The data path: what make mutants changes.
PACKAGES ?= bundle bundle/agefile bundle/cache bundle/format bundle/ocilayout bundle/parts bundle/published bundle/transfer bundle/delta bundle/extract bundle/pull bundle/diff bundle/download \
	fetch fetch/upstream fetch/registries fetch/content fetch/packagesets fetch/helmindex fetch/packages fetch/packages/deb fetch/packages/rpm fetch/packages/iso fetch/packages/signature \
	registry registry/embedded registry/serve deploy
VULNDB   ?= https://vuln.go.dev
COMMIT   := $(shell git rev-parse HEAD 2>/dev/null)
DATE     := $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
CLI      := github.com/kkbundle/kkbundle/cmd/internal/cli
LDFLAGS  := -s -w -X $(CLI).version=$(VERSION),$(COMMIT),$(DATE)
EMBEDDED := cmd/internal/helper/bin
DIST     := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64
TEST_NEEDS := sshd:openssh-server sudo:sudo zstd:zstd python3:python3-minimal skopeo:skopeo ctr:containerd ip:iproute2 matchpathcon:selinux-utils
HOSTS    ?= 2
HOSTS_OS ?=
RESULTS  := $(CURDIR)/testdata/lab/results
export CGO_ENABLED ?= 0
# The helpers of this architecture: those of the other one are a quarter of all that is compiled.
HELPERS := $(or $(filter helper-amd64 helper-arm64,helper-$(shell go env GOARCH)),helper-amd64 helper-arm64)
# Releases have neither paths of the machine nor symbols for debuggers in them. Tests have the same flags, so that a package is compiled once for both.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false -gcflags=all=-dwarf=false)

.PHONY: help build build-all helper helper-amd64 helper-arm64 dist dist-check dist-try release test test-full race lint vuln fmt docs fuzz mutate mutants encoders bench bench-corpus demo recording clients conformance lab-needs lab lab-up lab-down e2e e2e-ha e2e-upgrade e2e-adopt e2e-one e2e-capi e2e-capi-upgrade e2e-all vm-e2e provider-test provider-generate clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

# go build touches its result even where nothing changed, and a test whose files were touched is run again. So the embedded files are
# replaced only by others.
helper: helper-amd64 helper-arm64 ## build the programs for hosts and pods for both architectures, to be embedded

helper-amd64 helper-arm64: helper-%:
	@mkdir -p bin/helper
	for program in kkbundle-node kkbundle-start kkbundle-proxy kkbundle-registry; do
		made=bin/helper/$$program-$* flags="-s -w"
		[ $$program != kkbundle-start ] || flags+=" -E main.entry"
		GOOS=linux GOARCH=$* go build -ldflags "$$flags" -o $$made ./cmd/$$program
	done
	rm -f $(EMBEDDED)/kkbundle-node-a??64 $(EMBEDDED)/kkbundle-*.gz # of earlier commits
	GOOS= GOARCH= go run ./cmd/internal/helper/pack $(EMBEDDED) bin/helper/kkbundle-{registry,node,proxy,start}-$*

# A helper that an earlier build-all left could be older than the program.
build: $(HELPERS) ## build bin/kkbundle, with the programs for hosts and pods of this architecture only
	@rm -f $(filter-out $(foreach arch,$(HELPERS:helper-%=%),$(wildcard $(EMBEDDED)/*-$(arch).zst)),$(wildcard $(EMBEDDED)/*.zst))
	go build -ldflags "$(LDFLAGS)" -o bin/kkbundle ./cmd/kkbundle

build-all: helper ## build bin/kkbundle with the programs for both architectures, as in a release
	@go build -ldflags "$(LDFLAGS)" -o bin/kkbundle ./cmd/kkbundle

dist: helper $(NFPM) ## a release in dist/: programs, deb, rpm, images, provider for Cluster API, formula, bill of materials, provenance, checksums; RELEASE_KEY=FILE or env://NAME signs them
	@rm -rf dist
	for p in $(DIST); do
		echo "dist/kkbundle-$$p"
		GOOS=$${p%-*} GOARCH=$${p#*-} go build -ldflags "$(LDFLAGS)" -o dist/kkbundle-$$p ./cmd/kkbundle
	done
	go run ./cmd/internal/manpages dist/share "$(VERSION)" "$(DATE)"
	printf -- '- {semver: "%s", date: %s, packager: %s, deb: {urgency: low, distributions: [unstable]}, changes: [{note: "%s"}]}\n' \
		"$(PACKAGE_VERSION)" "$(DATE)" "The kkbundle project <kkbundle@users.noreply.github.com>" \
		"https://github.com/kkbundle/kkbundle/blob/$(COMMIT)/CHANGELOG.md lists the changes." > dist/changelog.yaml
	for p in $(filter linux-%,$(DIST)); do
		for kind in deb rpm; do
			ARCH=$${p#*-} VERSION="$(PACKAGE_VERSION)" SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
				$(NFPM) package -f cmd/internal/release/nfpm.yaml -p $$kind -t dist/kkbundle-$$p.$$kind >/dev/null
		done
	done
	rm dist/changelog.yaml
	for p in $(filter linux-%,$(DIST)); do
		(cd provider && GOOS=linux GOARCH=$${p#*-} go build -ldflags "-s -w" -o ../dist/provider/manager-$$p ./cmd/manager)
	done
	cp provider/config/{metadata,infrastructure-components}.yaml provider/templates/cluster*.yaml dist
	go run ./cmd/internal/release dist "$(VERSION)" "$(COMMIT)" "$(DATE)" $(RELEASE_KEY)
	rm -rf dist/share dist/provider

dist-check: dist ## build dist/ again from a clone, in another directory and with nothing compiled, and compare; then dist-try
	@again=$$(mktemp -d); trap 'rm -rf "$$again"' EXIT
	git clone -q . "$$again/clone"
	GOCACHE="$$again/cache" $(MAKE) -s -C "$$again/clone" dist VERSION=$(VERSION) RELEASE_KEY=
	cmp dist/SHA256SUMS "$$again/clone/dist/SHA256SUMS"
	(cd dist && sha256sum --quiet -c SHA256SUMS)
	echo "the same bytes from two directories"
	$(MAKE) -s dist-try

dist-try: ## install the deb, the rpm and the image of dist/ in directories of their own, and run what is in them (root)
	@testdata/needs.sh rpm:rpm man:man-db skopeo:skopeo
	KKBUNDLE_DIST=$(CURDIR)/dist go test -count=1 -timeout 10m -v -run TestDist ./cmd/internal/release

release: dist-check ## publish dist/ of the tag $(VERSION) at GitHub with gh, and the images with skopeo; for .github/workflows/release.yml
	@testdata/needs.sh gh:gh skopeo:skopeo
	(cd dist && gh release create "$(VERSION)" --verify-tag --title "$(VERSION)" --notes "See CHANGELOG.md." *)
	dist/kkbundle-linux-amd64 login ghcr.io --username "$$GITHUB_ACTOR" --password-stdin <<< "$$GH_TOKEN"
	skopeo copy --all "oci-archive:dist/kkbundle-image.tar:$(VERSION)" "docker://ghcr.io/kkbundle/kkbundle:$(VERSION)"
	skopeo copy --all "oci-archive:dist/kkbundle-provider-image.tar:$(VERSION)" "docker://ghcr.io/kkbundle/provider:$(VERSION)"

# make test-full and make lint vet. Vetting here would analyze every dependency on a machine that has compiled nothing, and programs for another
# architecture would compile them twice. Many tests mostly wait (for sshd, for a disk), so there are more processes and tests at a time than processors.
# Garbage collection, half of the processor time in the process of the commands' tests, runs less often. Tests write thousands of small files, in
# memory if it has room; make test-full writes them to the disk.
test: $(HELPERS) ## unit and integration tests without the slow ones: what to run after each change
	@testdata/needs.sh $(TEST_NEEDS)
	processors=$$(getconf _NPROCESSORS_ONLN)
	GOGC=400 testdata/memory.sh go test -short -vet=off -ldflags=-w -p $$((processors + 1)) -parallel $$((2 * processors)) -timeout 20m ./...

test-full: helper ## all tests: also of size and of hostile input, kill loops, arm64 emulated, the lab's own
	@testdata/needs.sh $(TEST_NEEDS) gcc:gcc qemu-aarch64-static:qemu-user-static rpmbuild:rpm dnf:dnf
	go vet ./... ./testdata/scale ./testdata/mutate ./testdata/mutants
	go test -timeout 40m ./... ./testdata/scale ./testdata/mutate ./testdata/mutants
	GOARCH=arm64 go test -exec qemu-aarch64-static -run Golden ./bundle # the same bundle, byte for byte
	cd testdata/lab && go vet ./... && go test -short -timeout 5m ./...

# A module of its own with Kubernetes' libraries of another release: five minutes of processor time on a machine that has compiled nothing, and two
# for the tests. Results are not cached: go does not know that they need the lab's programs.
provider-test: $(CONTROLLER_GEN) ## the provider for Cluster API: its tests, against the lab's API server (make lab)
	@compgen -G "$${KKBUNDLE_LAB:-$(CACHE)/kkbundle-lab}/bin-*/kube-apiserver" > /dev/null || [ -n "$${KUBEBUILDER_ASSETS:-}" ] ||
		echo "NOT RUN: tests against an API server; make lab builds it, or KUBEBUILDER_ASSETS names a directory with kube-apiserver and etcd"
	cd provider
	go vet ./...
	go test -count=1 -timeout 20m ./api/... ./cmd/... ./internal/...
	go test -count=1 ./config -generator $(CONTROLLER_GEN)

# The program that writes the components has the CRDs embedded, so it is compiled again after these.
provider-generate: $(CONTROLLER_GEN) ## write CRDs, deep copies and components of the provider anew
	cd provider
	go test ./config -run TestGenerated -generator $(CONTROLLER_GEN) -update
	go test ./config -run TestComponents -update

$(CONTROLLER_GEN):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS)/tmp go install sigs.k8s.io/controller-tools/cmd/controller-gen@$(CONTROLLER_GEN_VERSION)
	mv $(TOOLS)/tmp/controller-gen $@

race: $(HELPERS) ## the race detector on the short tests of what is concurrent: 40 minutes on two slow cores that have compiled nothing
	@testdata/needs.sh $(TEST_NEEDS) gcc:gcc
	CGO_ENABLED=1 go test -race -short -timeout 25m $$(go list ./bundle/... ./fetch/... ./registry/... ./installer/... | grep -v /regzip$$) # regzip has no goroutines

lint: $(LINT) $(HELPERS) ## the lint set, shell scripts, formatting, and the layers of docs/architecture.md
	@testdata/needs.sh shellcheck:shellcheck
	$(LINT) run ./... ./testdata/scale/... ./testdata/mutate/... ./testdata/mutants/...
	(cd testdata/lab && $(LINT) run --config ../../.golangci.yml ./...)
	(cd testdata/containerd && $(LINT) run --config ../../.golangci.yml ./...)
	(cd provider && $(LINT) run --config ../.golangci.yml ./...)
	shellcheck .ci/run $$(git ls-files '*.sh')
	# The lab is built anew when its first process changes, so that a remark cannot be in it: mount points there have no blanks.
	shellcheck --exclude=SC2013 testdata/lab/software/root/lab-init
	$(LINT) fmt --diff > /dev/null || { $(LINT) fmt --diff; echo "run make fmt"; exit 1; }

vuln: $(VULN) $(HELPERS) ## known vulnerabilities in code that kkbundle calls; asks VULNDB, vuln.go.dev or a copy of it (file:///DIR)
	@rc=0; $(VULN) -db $(VULNDB) ./cmd/... || rc=$$?
	case $$rc in
	0) ;;
	1) echo "NOT CHECKED for known vulnerabilities: $(VULNDB) did not answer; set VULNDB=file:///DIR to a copy" ;;
	*) exit $$rc ;;
	esac

$(VULN):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS)/tmp go install golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)
	mv $(TOOLS)/tmp/govulncheck $@

$(NFPM):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS)/tmp go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	mv $(TOOLS)/tmp/nfpm $@

fmt: $(LINT) ## format
	@$(LINT) fmt

$(LINT):
	@echo "building golangci-lint $(LINT_VERSION) (once)"
	mkdir -p $(TOOLS)
	GOBIN=$(TOOLS)/tmp go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(TOOLS)/tmp/golangci-lint $@

docs: $(HELPERS) ## write the generated pages of docs anew: keys, commands, exit codes, error messages, checks, the catalog's tables, marks, platforms
	@go test ./manifest ./cmd/internal/cli -run 'TestReference$$' -update
	go test ./installer/precheck/render -run 'TestListIsDocumented$$' -update
	go test ./installer -run 'TestCatalogPage$$' -update
	go test ./installer/marks -run 'TestPage$$' -update
	go test ./cmd/internal/manual -run 'TestErrorsPage$$' -update
	cd testdata/lab && go test ./results -run 'TestPlatformsPage$$|TestUpgradeTable$$|TestDeployMatrixPage$$' -update

fuzz: ## every fuzz target for FUZZTIME (default 20s) each
	@for pkg in $$(go list ./...); do
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do
			echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-20s} -fuzzminimizetime 10x $$pkg
		done
	done

mutate: $(HELPERS) ## MUTATIONS=10000 hostile bundles, registry answers, charts and host answers: no panic, memory and time within bounds
	@dir=$$(mktemp -d -p $$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)); trap 'rm -rf "$$dir"' EXIT # in memory: thousands of small files
	TMPDIR=$$dir MUTATIONS=$${MUTATIONS:-10000} go test -count=1 -timeout 60m -v -run TestMutations ./testdata/mutate

mutants: $(HELPERS) $(GREMLINS) ## change conditions of PACKAGES="bundle/format ..." one by one: what no short test notices needs a reason in testdata/mutants (the whole data path: many hours)
	@GOFLAGS="$(GOFLAGS) -short -vet=off -count=1" nice go run ./testdata/mutants $(GREMLINS) $(PACKAGES)

$(GREMLINS):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS)/tmp go install github.com/go-gremlins/gremlins/cmd/gremlins@$(GREMLINS_VERSION)
	mv $(TOOLS)/tmp/gremlins $@

bench-corpus: $(HELPERS) ## 20 images, 700 MB of gzip layers, beside what the same bytes cost anyhow (downloads Debian packages once)
	@KKBUNDLE_BIG=1 go test -count=1 -timeout 30m -v -run TestCorpus ./testdata/scale

encoders: ## which streams of other gzip encoders deltas make again, against the table of docs/site/updates.md
	@KKBUNDLE_BIG=1 go test -count=1 -timeout 30m -v -run TestCoverageOfEncoders ./bundle/regzip

bench: $(HELPERS) ## Go benchmarks, then whole processes on large input (25 GB of $$TMPDIR)
	@go test -run '^$$' -bench . -benchmem ./bundle/... ./fetch/... ./registry/... ./installer/node/...
	KKBUNDLE_BIG=1 go test -count=1 -timeout 30m -v ./testdata/scale

demo: build ## a small real upstream, and the way of a byte through build, verify, inspect, push and pull
	@testdata/lab/demo.sh

recording: build ## README's picture: builds and installs in the lab (root), and draws docs/recording.svg from what they print
	@testdata/recording/record.sh

clients: build ## crane, skopeo, helm, containerd (also 500 at once), curl, apt, dnf and a browser against what kkbundle serves, requirement by requirement
	@testdata/needs.sh chromium:chromium || true
	testdata/clients/clients.sh
	go test -count=1 -v -run 'TestBrowser|TestApt|TestDnf' ./registry/serve
	go test -count=1 -v -run TestBrowser ./cmd/internal/manual
	cd testdata/containerd && KKBUNDLE_PROGRAM=$(CURDIR)/bin/kkbundle go test -count=1 -timeout 30m -v .

conformance: build ## the OCI conformance suite for distribution 1.1 against registry serve (from the module proxy)
	@testdata/conformance.sh $(CONFORMANCE_VERSION)

lab-needs: ## install the Debian packages that the lab needs (root)
	@cd testdata/lab && go run . needs

lab: ## build the end-to-end lab's software (once, about 11 minutes on two free cores)
	@cd testdata/lab && go run . build

lab-up: lab ## boot HOSTS=2 hosts without a route out; HOSTS_OS=bullseye,trixie for other releases of Debian, in turn
	@cd testdata/lab && go run . up --hosts $(HOSTS) --os "$(HOSTS_OS)"

lab-down: ## stop them and leave nothing
	@cd testdata/lab && go run . down

e2e: build lab ## the whole thread on lab hosts: build, push, install, verify, rerun, reset
	@cd testdata/lab && go test -count=1 -timeout 35m -v -run TestThread ./e2e/...

e2e-ha: build lab ## three control planes and two workers: one lost, one replaced; a cluster behind a shared address
	@cd testdata/lab && go test -count=1 -timeout 25m -v -run TestHA ./e2e/...

e2e-upgrade: build lab ## two lab nodes, then five, to the next minor release and back: refused, killed, continued, with an application that answers
	@cd testdata/lab && go test -count=1 -timeout 90m -v -run 'TestUpgrade$$|TestUpgradeHA$$' ./e2e

e2e-adopt: build lab ## clusters of kubeadm's own commands, and in Kubespray's and KubeKey's layouts: described, taken over, given back, taken over again, a node added, upgraded
	@cd testdata/lab && go test -count=1 -timeout 120m -v -run 'TestAdopt$$|TestAdopted$$|TestAdoptKubespray$$|TestAdoptKubeKey$$' ./e2e

e2e-one: build lab ## one lab test, TEST=TestAges, and its result in testdata/lab/results; HOSTS_OS=bullseye for other hosts
	@cd testdata/lab && KKBUNDLE_RESULTS=$(RESULTS) HOSTS_OS="$(HOSTS_OS)" go test -count=1 -timeout 80m -v -run '^$(or $(TEST),$(error TEST=NAME is missing))$$' ./e2e

e2e-capi: build lab ## clusters declared by Cluster API's own controllers and provider/, as processes, and as pods from a bundle, behind an address of kube-vip, from where one is moved, and to which one of install is handed over; results in testdata/lab/results
	@(cd provider && go build -o ../bin/kkbundle-provider ./cmd/manager)
	cd testdata/lab && KKBUNDLE_RESULTS=$(RESULTS) go test -count=1 -timeout 120m -v -run '^(TestCAPI|TestCAPIAdopt|TestCAPIAdoptThree|TestClusterAPI|TestClusterAPIVIP|TestClusterAPIMove)$$' ./e2e

e2e-capi-upgrade: build lab ## three declared control planes, and a single one: a lost worker, upgrades by one minor release, on spare hosts and in place, and the results in testdata/lab/results
	@(cd provider && go build -o ../bin/kkbundle-provider ./cmd/manager)
	cd testdata/lab && KKBUNDLE_RESULTS=$(RESULTS) go test -count=1 -timeout 120m -v -run '^(TestCAPIUpgrade|TestCAPIUpgradeOne|TestCAPIInPlace|TestCAPIInPlaceWorkers)$$' ./e2e

e2e-all: build lab ## every lab test, one after the other (hours), and the page of platforms from their results
	@(cd provider && go build -o ../bin/kkbundle-provider ./cmd/manager)
	cd testdata/lab
	failed=
	for test in $$(go test -list '^Test' ./e2e | grep '^Test'); do
		KKBUNDLE_RESULTS=$(RESULTS) HOSTS_OS="$(HOSTS_OS)" go test -count=1 -timeout 80m -v -run "^$$test\$$" ./e2e || failed="$$failed $$test"
	done
	go test ./results -run 'TestPlatformsPage$$|TestUpgradeTable$$|TestDeployMatrixPage$$' -update
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

vm-e2e: build-all lab ## virtual machines with their own kernel (QEMU): RUN=TestVM selects; hours without KVM
	@cd testdata/lab && KKBUNDLE_VM=1 KKBUNDLE_RESULTS=$(RESULTS) go test -count=1 -timeout 4h -v -run '$(or $(RUN),TestVM)' ./e2e

clean: ## remove what make made here (the caches in $(CACHE) stay)
	@rm -rf bin dist $(EMBEDDED)/kkbundle-*
