# Each target has its line of help behind two number signs; `make help` prints them.

GO      ?= go
TOOL    := $(GO) tool -modfile=server/tools/go.mod
# The benchmark against others is a module of its own: the service's dependencies do not grow by theirs.
BENCH   := $(GO) -C server/bench
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

# What `make run` passes on, as in: make run ARGS=--ephemeral
ARGS ?=
# The packages of `make test`, and further flags for go test. Nothing is taken from the cache: some
# tests build and run the server, which the cache does not see.
PKG       ?= ./...
TESTFLAGS ?=
# RACE=required makes `make test` fail where the race detector cannot run.
RACE ?= wanted

# How long `make fuzz` lets each target run, and further flags, such as FUZZFLAGS=-parallel=2.
FUZZTIME  ?= 20s
FUZZFLAGS ?=
FUZZ      := drill/hostile:FuzzExecutionService drill/hostile:FuzzWorkerService drill/hostile:FuzzOperatorService \
	drill/hostile:FuzzPageTokens drill/hostile:FuzzProgramOutput webhook:FuzzAnswer

.DEFAULT_GOAL := help
.PHONY: help run demo drill soak bench bench-full test test-faults prove-drill simulate fuzz test-patroni lint vulnerabilities generate build postgres

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## run the scheduler with a PostgreSQL of its own, on 127.0.0.1:50051
	@exec bin/leasehold dev $(ARGS)

demo: build ## send 2,000 coupons while processes are killed and frozen; two minutes at most
	@exec bin/leasehold demo

# Which drills, or on which database, as in: make drill ARGS='--only outage,listen'
drill: build ## kill, freeze and cut off every part of an installation, and check that nothing is lost
	@exec bin/leasehold drill $(ARGS)

soak: build ## drill with faults at random until a million attempts were made (hours)
	@exec bin/leasehold drill --soak 1000000 $(ARGS)

# Which scenarios, or how many pairs, as in: make bench ARGS='P1 P2 --pairs 3'
bench: build postgres ## measure against River and against itself, in short (12 minutes on 2 cores), a line each
	$(BENCH) build -trimpath -buildvcs=false -o ../../bin/leasehold-bench .
	@exec bin/leasehold-bench run --short $(ARGS)

bench-full: build postgres ## measure all scenarios against River, itself and PostgreSQL's limit (three hours)
	$(BENCH) build -trimpath -buildvcs=false -o ../../bin/leasehold-bench .
	@exec bin/leasehold-bench run $(ARGS)

test: postgres ## run the tests, with the race detector where a C compiler is
	@$(find_cc); \
	if [ -n "$$cc" ]; then \
		CC="$$cc" CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 20m $(TESTFLAGS) $(PKG); \
	elif [ "$(RACE)" = required ]; then \
		echo "the race detector is required, but there is no C compiler for it" >&2; exit 1; \
	else \
		echo "no C compiler (with its headers) here: testing without the race detector" >&2; \
		$(GO) test -count=1 -timeout 20m $(TESTFLAGS) $(PKG); \
	fi
	@[ "$(PKG)" != ./... ] || $(BENCH) test -count=1 -timeout 20m $(TESTFLAGS) ./...

test-faults: postgres ## run the server's tests at full counts, with kills and freezes (an hour at most)
	LEASEHOLD_FULL=1 CGO_ENABLED=1 $(GO) test -race -timeout 60m -count=1 $(TESTFLAGS) ./server/...

prove-drill: postgres ## run the drill on builds with a fault each: it must fail on every one
	LEASEHOLD_PROVE=1 $(GO) test -timeout 120m -count=1 -v -run Drill_FailsOnBrokenBuilds $(TESTFLAGS) ./server/internal/drill/broken

test-patroni: postgres ## kill the leader of three PostgreSQLs under Patroni; needs patroni, etcd-server and haproxy
	LEASEHOLD_PATRONI=1 $(GO) test -timeout 30m -count=1 -v -run TestPatroni_ $(TESTFLAGS) ./server/internal/drill/faults

simulate: ## drive the core through 1,000,000 random steps against a model, in memory (minutes)
	LEASEHOLD_STEPS=1000000 $(GO) test -run TestSimulation -v -count=1 -timeout 60m ./server/internal/memstore $(TESTFLAGS)

fuzz: postgres ## send any bytes to the services and parsers, each of six targets for FUZZTIME (20s)
	@for target in $(FUZZ); do \
		echo "=== $$target"; \
		$(GO) test -run '^$$' -fuzz "^$${target#*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $(FUZZFLAGS) "./server/internal/$${target%:*}" || exit 1; \
	done

lint: vulnerabilities ## check formatting, proto files and code
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:" $$unformatted >&2; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags crashpoints ./server
	GOOS=darwin CGO_ENABLED=0 $(GO) vet ./server/...
	$(TOOL) buf lint
	$(TOOL) golangci-lint run
	$(BENCH) vet ./...
	cd server/bench && $(GO) tool -modfile=../tools/go.mod golangci-lint run

vulnerabilities: ## look for known vulnerabilities of what the service is built from, without the network
	$(GO) -C server/tools/vuln run . "$(CURDIR)"

generate: ## write the generated code anew: the stubs from proto/, the queries from db/
	$(TOOL) buf generate
	CGO_ENABLED=0 $(TOOL) sqlc generate
	$(TOOL) buf build --exclude-source-info -o api/examples/node/leasehold.binpb

build: ## build bin/leasehold
	$(GO) build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION)" -o bin/leasehold ./server

postgres:
	@$(GO) run ./server/internal/devpg/ensure

# Sets the shell's variable cc to a compiler that the race detector can use. A
# compiler alone is not enough: Debian's can be installed without the headers.
define find_cc
cc=; if $(GO) list -race errors >/dev/null 2>&1; then \
	for c in "$$($(GO) env CC)" cc gcc clang; do \
		if printf '\043include <stdlib.h>\n' | $$c -fsyntax-only -x c - >/dev/null 2>&1; then cc=$$c; break; fi; \
	done; \
fi
endef
