# holdfast: what a newcomer types.  A thin front over Meson.
#
#   make demo      install what the build needs, build, and show the main job
#   make check     install what the tests need, build five ways, run everything
#   make bench     measure, next to the limit and to peers
#   make soak      the simulation for ten minutes, with seeds of its own
#   make install   DESTDIR=... PREFIX=/usr/local
#   make clean

PREFIX ?= /usr/local
BUILD  ?= build
SOAK   ?= 600

.PHONY: all demo check bench soak install clean setup

all: setup
	@meson compile -C $(BUILD)

setup: $(BUILD)/build.ninja

$(BUILD)/build.ninja:
	@scripts/setup build
	@meson setup $(BUILD) --buildtype=release --prefix=$(PREFIX)

demo: all
	@scripts/demo

check:
	@scripts/setup check
	@test/check

bench: all
	@scripts/setup bench
	@bench/all

soak: all
	@$(BUILD)/test/sim/sim -t $(SOAK)

install: all
	@meson configure $(BUILD) -Dprefix=$(PREFIX)
	@DESTDIR=$(DESTDIR) meson install -C $(BUILD)

clean:
	@rm -rf build build-*
