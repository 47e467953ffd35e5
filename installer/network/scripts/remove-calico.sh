#!/bin/sh
# remove-calico.sh: removes the routes of Felix (protocol 80), and of Calico's BIRD (12) unless the host has a BIRD of
# its own; routes to blocks of addresses that lead nowhere belong to no interface, and stay with it gone. Then Felix'
# pins in the BPF file system, which it makes with every data plane, and its table for ARP.
for family in -4 -6; do
	ip $family route flush proto 80 || exit 1
	if ! pidof bird bird6 >/dev/null; then
		ip $family route flush proto 12 || exit 1
	fi
done
for p in /sys/fs/bpf/calico /sys/fs/bpf/tc/globals/cali_*; do
	[ ! -e "$p" ] || rm -rf -- "$p" || exit 1
done
rmdir /sys/fs/bpf/tc/globals /sys/fs/bpf/tc 2>/dev/null # unless others use them
nft delete table arp calico-arp 2>/dev/null
exit 0
