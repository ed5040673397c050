# holdfast: what a newcomer types.  A thin front over Meson.
#
#   make demo      install what the build needs, build, and show the main job
#   make check     install what the tests need, build five ways, run everything
#   make bench     measure, next to the limit and to peers, in half an hour;
#                  make bench BACKEND=redis QUICK=1 takes a minute
#   make lint      static analysis, all of it
#   make soak      the simulations for ten minutes, with seeds of their own, and
#                  the longer version of what the tests do for seconds only,
#                  and made-up input for another ten
#   make torture   hurt every service with every fault, for TORTURE seconds each,
#                  and write what came out into doc/guarantees.md
#   make mutants   let deliberate bugs loose and see each of them caught
#   make mutate    N=50 SEED=1: small random changes in the sources, one at a
#                  time; do the fast tests notice?
#   make model     check the models of the protocols, in all their states, and
#                  some of the sources for all inputs
#   make install   DESTDIR=... PREFIX=/usr/local
#   make deb       the Debian packages, into dist/
#   make tarball   a tree that runs from any directory, into dist/
#   make wheel     the Python package, with the library inside, into dist
#   make rpm       RPM packages, into dist/
#   make image     a root file system for containers, into dist/
#   make html      the manual as HTML, into dist/html
#   make clean

PREFIX ?= /usr/local
BUILD  ?= build
SOAK   ?= 600
TORTURE ?= 20

export BUILD BACKEND QUICK LONG FIRST PLOT

SETUP = meson setup $(BUILD) --buildtype=release --prefix=$(PREFIX)

.PHONY: all demo check bench lint soak torture mutants mutate model install \
        deb tarball rpm image wheel html clean

all:
	@scripts/setup full
	@test -f $(BUILD)/build.ninja || $(SETUP)
	@meson setup --reconfigure $(BUILD) >/dev/null
	@meson compile -C $(BUILD)

# Only mem: and file: are needed for it, so no library is fetched.
demo:
	@scripts/setup build
	@test -f $(BUILD)/build.ninja || $(SETUP)
	@meson compile -C $(BUILD) cli/holdfast
	@HOLDFAST=$(BUILD)/cli/holdfast scripts/demo

check:
	@scripts/setup check
	@test/check

bench:
	@bench/all check
	@$(MAKE) --no-print-directory all
	@scripts/setup bench
	@bench/all

lint: all
	@scripts/setup check
	@scripts/lint-format
	@test/lint/analyse $(BUILD) full

soak: all
	@$(BUILD)/test/sim/sim -t $(SOAK)
	@SEEDS=100000 $(BUILD)/test/redlock/redlock-fence
	@HF_SOAK=60 HOLDFAST_MODULE_DIR=$(BUILD)/src $(BUILD)/test/redlock/redlock-contend
	@scripts/setup check
	@test -f build-fuzz/build.ninja || \
	    CC=clang meson setup build-fuzz -Db_sanitize=address,undefined -Db_lundef=false >/dev/null
	@meson compile -C build-fuzz etcd-fuzz
	@test/etcd/fuzz.sh build-fuzz/test/etcd/etcd-fuzz -max_total_time=$(SOAK)
	@test/fuzz/soak $(SOAK)

torture: all
	@scripts/setup check
	@test/torture/matrix $(BUILD) $(TORTURE)

mutants:
	@scripts/setup check
	@test -f build-mutants/build.ninja || \
	    meson setup build-mutants --buildtype=debugoptimized -Dmutants=true
	@meson compile -C build-mutants
	@test/mutants/hunt build-mutants --write

mutate:
	@scripts/setup check
	@test/mutate/mutate -n $(or $(N),50) -s $(or $(SEED),1)

model:
	@scripts/setup model
	@model/check
	@model/cbmc/check

# A tree that is not there yet is built without the tests.
TREE = $(if $(wildcard $(BUILD)/build.ninja),$(BUILD),build-install)

install:
	@scripts/setup full
	@test -f $(TREE)/build.ninja || meson setup $(TREE) --buildtype=release -Dtests=false
	@meson configure $(TREE) -Dprefix=$(PREFIX)
	@DESTDIR=$(DESTDIR) meson install -C $(TREE)
	@test -n "$(DESTDIR)" || test "$$(id -u)" -ne 0 || ldconfig

deb:
	@scripts/setup package
	@packaging/deb

tarball:
	@scripts/setup package
	@packaging/tarball

rpm:
	@scripts/setup package
	@packaging/rpm

image: deb
	@packaging/image

html:
	@scripts/setup html
	@scripts/html-manual dist/html

wheel: all
	@bindings/python/wheel $(BUILD) dist

clean:
	@rm -rf build build-* dist
