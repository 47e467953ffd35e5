#!/bin/sh
# remove-cilium.sh: removes Cilium's pins from the BPF file system, and its rules and tables of routes.
for p in /sys/fs/bpf/cilium /sys/fs/bpf/tc/globals/cilium_*; do
	[ ! -e "$p" ] || rm -rf -- "$p" || exit 1
done
rmdir /sys/fs/bpf/tc/globals /sys/fs/bpf/tc 2>/dev/null # unless others use them
# The agent moves the kernel's rule 0 to 100, below its rules for Envoy.
for family in -4 -6; do
	if ip $family rule 2>/dev/null | grep -q '^100:.*from all lookup local'; then
		ip $family rule | grep -q '^0:.*from all lookup local' || ip $family rule add pref 0 lookup local || exit 1
		ip $family rule del pref 100 lookup local || exit 1
	fi
	for mark in 0x200:2004 0xa00:2005 0xb00:2005; do
		ip $family rule del fwmark ${mark%:*}/0xf00 lookup ${mark#*:} 2>/dev/null
		ip $family route flush table ${mark#*:} 2>/dev/null
	done
done
exit 0
