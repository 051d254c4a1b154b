# SPDX-License-Identifier: GPL-2.0
#
# make            build rxe_rs.ko for a stock Debian 13 kernel (KDIR= for a prepared tree of your own)
# make demo       build it, boot two machines with that kernel, show RDMA between them
# make help       everything else
#
# KERNEL=7.2 or KERNEL=7.3 chooses the kernel series; the newest one that Debian offers completely is the default.

KERNEL ?=
SUITES ?=
export KERNEL SUITES
ROOT := qemu/in-root.sh

.PHONY: all module tools demo test test-suites test-security test-debug test-transitions fuzz sanitize miri check fmt fmt-check doc clippy \
	audit insmod-help clean distclean shell help bench setup hooks

all: module

ifdef KDIR
# One's own tree and tools: nothing is set up, nothing is downloaded.
module:
	@qemu/check-kdir.sh "$(KDIR)"
	$(MAKE) -C $(KDIR) M=$(CURDIR) MO=$(CURDIR)/out/kdir modules
	@echo "==> built out/kdir/rxe_rs.ko; how to load it: make insmod-help"
else
module: setup
	@qemu/build-module.sh $(if $(KERNEL),-k $(KERNEL))
	@qemu/module-path.sh
endif

# The toolchain root, the kernel and the images, in the cache folder; what exists is used as it is.
setup:
	@qemu/bootstrap.sh setup
	@$(ROOT) qemu/image.py $(KERNEL) >/dev/null

# rxectl, its manual pages and shell completions, librxe_rs and its headers in out/tools/, for Debian 13.
tools: setup
	@qemu/build-tools.sh

demo: module
	@qemu/demo.sh

test: setup
	@qemu/test.sh

# Other projects' suites (ktests/suites), all of them.
test-suites: setup
	@qemu/test.sh suites

# What SECURITY.md promises: the tests that it names.
test-security: setup
	@qemu/test.sh security

# Everything in machines again, on a kernel that checks locks, memory and contexts; failing allocations; long attacks.
test-debug: setup
	@qemu/test.sh debug

# Every (state, next state, set of attributes) of queue pairs, in User Mode Linux; `make test` does so too where KVM works.
test-transitions: setup
	@qemu/test.sh transitions

# Any calls, any packets, any histories of a queue pair, for SECONDS (ktests/fuzz/README.md).
fuzz: setup
	@FUZZ_SECONDS="$(SECONDS)" FUZZ_SEED="$(SEED)" qemu/test.sh fuzz

# Host tests again with every access to memory checked.
sanitize: setup
	@qemu/sanitize.sh

# The same in an interpreter that knows the language's rules; with a Miri that this machine has.
miri:
	@qemu/miri.sh

check: setup
	@qemu/test.sh check

fmt: setup
	@qemu/lint.sh fmt

fmt-check: setup
	@qemu/lint.sh fmt-check

# Documentation of the crates that cargo can build.
doc: setup
	@qemu/lint.sh doc

clippy: setup
	@qemu/lint.sh clippy

audit: module
	@qemu/lint.sh audit

bench: setup
	@qemu/bench/bench $(if $(KERNEL),--kernel $(KERNEL)) $(BENCH)

# Quick checks before each commit (qemu/hooks/pre-commit); `git config --unset core.hooksPath` takes them away.
hooks: setup
	@$(ROOT) qemu/fetch-crates.sh
	@git config core.hooksPath qemu/hooks
	@echo "==> qemu/hooks/pre-commit runs before each commit; git commit --no-verify skips it"

insmod-help:
	@cat qemu/insmod-help.txt

shell: setup
	@$(ROOT)

clean:
	rm -rf out target

# Also forgets the cache: the next run downloads and prepares everything again.
distclean: clean
	rm -rf --one-file-system "$${RXE_RS_CACHE:-$$HOME/.cache/rxe_rs}"

help:
	@cat qemu/help.txt
