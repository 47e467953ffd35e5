#!/bin/sh
# remove-hybridnet.sh: removes the rules by which Hybridnet's daemon chooses tables of routes (39999 for pods of the
# host, 40000 for the others, 40001 for answers of nodes, one from 10000 on for what each network of pods sends), these
# tables, its VXLAN interfaces, which have the names of the host's own with ".vxlan" and a number, and the pods' gateway
# that it gives the loopback interface where nothing leads there.
ours='from all (fwmark 0x20/0x20 )?lookup (39999|4000[01])|fwmark 0(x0)?/0x4040 lookup [123][0-9]{4}'
for family in -4 -6; do
	ip $family rule show | grep -E "$ours" | while read -r priority rule; do
		# shellcheck disable=SC2086 # words of the rule
		ip $family rule delete priority "${priority%:}" $rule || exit 1
		ip $family route flush table "${rule##* }" 2>/dev/null || continue # there is no such table
	done || exit 1
done
ip -o link show type vxlan | sed -n 's/^[0-9]*: \([^:@]*\.vxlan[0-9][0-9]*\)[:@].*/\1/p' | while read -r link; do
	ip link delete "$link" || exit 1
done || exit 1
ip -4 route delete 169.254.1.1/32 dev lo 2>/dev/null
rm -f /run/cni/hybridnet.sock || exit 1
rmdir /run/cni 2>/dev/null # unless others use it
exit 0
