#!/bin/sh
# remove-kube-ovn.sh: removes those rules of kube-ovn's daemon that name nothing of it: they take the mark off the
# packets of tunnels (Geneve, VXLAN). Then the directory of its data, unless others use it.
for program in iptables ip6tables; do
	command -v $program >/dev/null || continue
	for port in 6081 4789; do
		while $program -w -t filter -D OUTPUT -p udp -m udp --dport $port -j MARK --set-xmark 0x0 2>/dev/null; do :; done
	done
done
rmdir /etc/origin 2>/dev/null
exit 0
