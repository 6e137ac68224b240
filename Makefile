# Fronts the CMake presets; `make help` lists the targets.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
CTEST  := ctest --test-dir $(BUILD) --output-on-failure -j$(JOBS) $(CTEST_FLAGS)

.DEFAULT_GOAL := build
.PHONY: help packages build demo test test-slow bench lint asan tsan fuzz format install clean

help:
	@echo "make demo      build, then run a node, a prefill and a decode worker on this machine"
	@echo "make test      build, then run every test that this machine can run"
	@echo "make test-slow the tests of minutes; QMLA_DATA_DIR names the measuring models' folder"
	@echo "make build     build everything into $(BUILD) (PRESET=release|debug|cpu-only)"
	@echo "make bench     measure this machine; JSON lines, a limit beside each figure"
	@echo "make lint      format, folder rules, cppcheck"
	@echo "make asan      tests under AddressSanitizer and UBSan"
	@echo "make tsan      tests under ThreadSanitizer"
	@echo "make fuzz      fuzz every decoder of outside bytes (FUZZ_SECONDS=$(FUZZ_SECONDS) each)"
	@echo "make format    rewrite the sources with clang-format"
	@echo "make install   install (PREFIX=/usr/local, DESTDIR=)"
	@echo "make clean     remove build/"

packages:
	@deploy/install-packages.sh

build: packages
	@mkdir -p build
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log 2>&1 || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build $(BUILD) --parallel $(JOBS) $(if $(TARGETS),--target $(TARGETS))

demo: build
	@deploy/demo/run $(BUILD)/bin

test: build
	@$(CTEST) -LE 'slow|bench'

test-slow: build
	@$(CTEST) -L slow

bench: build
	@tests/bench/run $(BUILD)

lint: packages
	@tests/lint/run

asan tsan:
	@$(MAKE) --no-print-directory test PRESET=$@

FUZZ_SECONDS ?= 60
fuzz:
	@$(MAKE) --no-print-directory build PRESET=fuzz TARGETS=fuzzers
	@tests/fuzz/run build/fuzz $(FUZZ_SECONDS)

format: packages
	@tests/lint/sources | xargs clang-format -i

install: build
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

clean:
	@rm -rf build
