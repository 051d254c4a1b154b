# SPDX-License-Identifier: GPL-2.0
#
# make            build rxe_rs.ko for a stock Debian 13 kernel (KDIR=DIR: for your own prepared kernel source tree)
# make demo       build it, boot two virtual machines with that kernel, and run RDMA between them
# make help       list all targets and variables
#
# KERNEL=7.2 or KERNEL=7.3 chooses the kernel series; the newest one that Debian offers completely is the default. FLAVOUR=cloud-amd64 or
# rt-amd64 chooses another flavour of Debian's kernel, FLAVOUR=arm64, cloud-arm64 or arm64-16k one of 64-bit ARM, by cross compilers;
# KERNEL=7.2-cloud is the same as KERNEL=7.2 FLAVOUR=cloud-amd64. `make module` alone also takes KERNEL=testing, sid or experimental.

KERNEL ?=
FLAVOUR ?= amd64
SUITES ?=
flavours := amd64 cloud-amd64 rt-amd64 arm64 cloud-arm64 arm64-16k
ifneq ($(filter-out $(flavours),$(FLAVOUR)),)
$(error FLAVOUR=$(FLAVOUR) is not supported; choose one of $(flavours) or leave it out)
endif
ifneq ($(filter-out amd64,$(FLAVOUR)),)
override KERNEL := $(if $(KERNEL),$(KERNEL)-)$(FLAVOUR:%-amd64=%)
endif
export KERNEL SUITES
ROOT := qemu/in-root.sh

.PHONY: all module tools deb ci-machine demo test test-suites test-apps test-security test-debug test-kernels test-transitions test-install test-docs site fuzz sanitize miri check \
	fmt fmt-check doc clippy audit insmod-help clean distclean shell help bench setup hooks kernels

all: module

ifdef KDIR
# With KDIR the user's own tree and compilers build the module: nothing is set up or downloaded.
module:
	@qemu/check-kdir.sh "$(KDIR)"
	$(MAKE) -C $(KDIR) M=$(CURDIR) MO=$(CURDIR)/out/kdir modules
	@echo "==> built out/kdir/rxe_rs.ko; how to load it: make insmod-help"
else ifneq ($(filter testing sid experimental,$(KERNEL)),)
# The kernel of another suite of Debian, with its compilers, to see whether the module builds.
ifneq ($(filter deb ci-machine demo doc audit,$(MAKECMDGOALS)),)
$(error KERNEL=$(KERNEL) is for `make module` alone; choose KERNEL=7.2 or 7.3 or leave it out)
endif
module:
	@qemu/suite-module.sh $(KERNEL)
else
module: setup
	@qemu/build-module.sh $(if $(KERNEL),-k $(KERNEL))
	@qemu/module-path.sh
endif

# Prepares the toolchain root, the kernel and the images in the cache folder; those that exist are reused.
setup:
	@qemu/bootstrap.sh
	@$(ROOT) qemu/image.py $(KERNEL) >/dev/null

# Builds rxectl, its manual pages and shell completions, librxe_rs and its headers for Debian 13: in out/tools/, or for arm64 in
# out/tools-arm64/.
tools: setup
	@qemu/build-tools.sh $(if $(findstring arm64,$(KERNEL)),-a arm64)

# Builds the Debian packages of the module, the tools and the library in out/deb/; SIGN_KEY and SIGN_CERT sign the module.
deb: module tools
	@SIGN_KEY="$(SIGN_KEY)" SIGN_CERT="$(SIGN_CERT)" qemu/build-deb.sh $(if $(KDIR),-m out/kdir/rxe_rs.ko)

# Makes the machine that rxe-ci boots, in out/ci/RELEASE/, and an archive of it (docs/ci.md); with UML=1 one for User Mode Linux.
ifneq ($(findstring arm64,$(KERNEL))$(findstring cloud,$(KERNEL)),)
ci-machine:
	@echo "==> rxe-ci boots machines with the flavours amd64 and rt-amd64 only (docs/ci.md)" >&2
	@exit 1
else
ci-machine: $(if $(UML),,module) tools
	@$(if $(UML),qemu/build-module.sh -u $(if $(KERNEL),-k $(KERNEL)))
	@qemu/ci-machine.py $(if $(KERNEL),--kernel $(KERNEL)) $(if $(UML),--uml) --tar
endif

demo: module
	@qemu/demo.sh

test: setup
	@qemu/test.sh

# Runs the test suites of other projects (ktests/suites): those named in SUITES, all by default.
test-suites: setup
	@qemu/test.sh suites

# Runs programs above the verbs (UCX, Open MPI, MPICH, libfabric, fio, qperf, rsockets, Rust crates, Mooncake and Ceph) and the kernel's RDMA
# users (NVMe, NFS, iSER, SRP, RDS and 9P).
test-apps: setup
	@qemu/test.sh apps

# Runs the tests that SECURITY.md names for its promises.
test-security: setup
	@qemu/test.sh security

# Repeats the machine tests on debug kernels, which check locks, contexts and memory accesses; adds failing allocations and longer fuzzing.
test-debug: setup
	@qemu/test.sh debug

# Runs some of the machine tests on each flavour of Debian's kernels, and between machines with amd64 and arm64.
test-kernels: setup
	@qemu/test.sh kernels

# Tries every combination of state, next state and attribute mask of ibv_modify_qp in User Mode Linux; `make test` does so under KVM.
test-transitions: setup
	@qemu/test.sh transitions

# Installs the Debian packages in a machine with a stock Debian 13 on a disk, and upgrades and removes them; with ARM64=1 lets DKMS build the
# module on arm64 as well.
test-install: setup
	@ARM64="$(ARM64)" qemu/test.sh install

# Runs the commands of the pages of docs/ between two machines.
test-docs: setup
	@qemu/test.sh docs

# Builds the documentation as a site in out/site/.
site: setup
	@$(ROOT) qemu/site_pages.py

# Fuzzes the user interface, packets and the protocol engine for SECONDS each, starting from SEED (ktests/fuzz/README.md).
fuzz: setup
	@FUZZ_SECONDS="$(SECONDS)" FUZZ_SEED="$(SEED)" qemu/test.sh fuzz

# Repeats host tests under AddressSanitizer.
sanitize: setup
	@qemu/sanitize.sh

# Repeats host tests under Miri, which must be installed on this machine.
miri:
	@qemu/miri.sh

check: setup
	@qemu/test.sh check

fmt: setup
	@qemu/lint.sh fmt

fmt-check: setup
	@qemu/lint.sh fmt-check

# Builds the documentation of all crates.
doc: module
	@qemu/lint.sh doc
	@qemu/lint.sh doc-module

clippy: setup
	@qemu/lint.sh clippy

audit: module
	@qemu/lint.sh audit

bench: setup
	@qemu/bench/bench $(if $(KERNEL),--kernel $(KERNEL)) $(BENCH)

# Installs the hooks of qemu/hooks; `git config --unset core.hooksPath` removes them.
hooks: setup
	@$(ROOT) qemu/fetch-crates.sh
	@git config core.hooksPath qemu/hooks
	@echo "==> qemu/hooks/pre-commit and commit-msg check each commit; git commit --no-verify skips them"

# Shows which kernels are supported, and what was built for them and ran on them in this clone.
kernels:
	@$(ROOT) qemu/kernel_record.py

insmod-help:
	@cat qemu/insmod-help.txt

shell: setup
	@$(ROOT)

clean:
	rm -rf out target

# Also removes the cache folder: the next run downloads and prepares everything again.
distclean: clean
	@qemu/clean-cache.sh

help:
	@cat qemu/help.txt
