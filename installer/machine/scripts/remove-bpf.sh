#!/bin/sh
# remove-bpf.sh: removes what Cilium has pinned in the BPF file system.
for p in /sys/fs/bpf/cilium /sys/fs/bpf/tc/globals/cilium_*; do
	[ ! -e "$p" ] || rm -rf -- "$p" || exit 1
done
