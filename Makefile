# The two that matter: make demo, make test.

GO ?= go
# The go command fails on a checkout that git does not trust; a build without a commit number is better than none.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && git status >/dev/null 2>&1 && echo true || echo false)
BUILD = $(GO) build -trimpath -buildvcs=$(VCS)
CODE = cmd engine plugins recipes registry sdk

.PHONY: build demo test check race nocgo arm64 bench recipes clean

build:
	$(BUILD) -o bin/bigmoe ./cmd/bigmoe
	$(BUILD) -o bin/bigmoe-compute-cpu ./plugins/compute-cpu

# Builds, and writes a story with the model that is inside the program.
demo: build
	bin/bigmoe run --greedy "Once upon a time there was a"

# Everything: style, all tests, data races, and the build without a C compiler.
test: check
	$(GO) test -timeout 25m ./...
	$(MAKE) race nocgo

check:
	@files="$$(gofmt -l $(CODE))"; test -z "$$files" || { echo "gofmt: $$files"; exit 1; }
	$(GO) vet ./...

# A process under the detector waits for a second before it exits; tests end many, and a backend has two.
race:
	GORACE="$$GORACE atexit_sleep_ms=0" $(GO) test -race -timeout 25m ./engine/... ./sdk/...

nocgo:
	CGO_ENABLED=0 $(GO) test -timeout 25m ./plugins/...
	CGO_ENABLED=0 $(GO) test -timeout 25m -run "TestGoldens|TestIdentity" ./engine

# The ARM kernels under emulation; says so and passes where the cross compiler or the emulator is missing.
arm64:
	sh plugins/compute-cpu/internal/kernel/test_arm64.sh

bench:
	$(GO) test -run '^$$' -bench . ./engine/... ./plugins/... ./sdk/...

# Rebuilds the WebAssembly modules, which are committed: a test says when they are out of date.
recipes:
	$(GO) generate ./recipes

clean:
	rm -rf bin
