#!/bin/sh
# remove-calico.sh: removes the routes of Felix (protocol 80), and of Calico's BIRD (12) unless the host has a BIRD of
# its own. Routes to blocks of addresses that lead nowhere belong to no interface, and stay with it gone.
for family in -4 -6; do
	ip $family route flush proto 80 || exit 1
	if ! pidof bird bird6 >/dev/null; then
		ip $family route flush proto 12 || exit 1
	fi
done
