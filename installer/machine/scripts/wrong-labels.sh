#!/bin/sh
# wrong-labels.sh DIR...: prints LABEL DIR for each directory that is missing or does not have the type that the host's SELinux
# policy has for it. Without SELinux, and for directories that the policy does not know, it prints nothing.
set -eu
PATH=$PATH:/usr/sbin:/sbin
[ -e /sys/fs/selinux/enforce ] || exit 0
type_of() { echo "$1" | cut -d : -f 3; }
for d; do
	want=$(matchpathcon -n -m dir "$d")
	[ "$want" != '<<none>>' ] || continue
	[ -d "$d" ] && [ "$(type_of "$(stat -L -c %C "$d" 2>/dev/null)")" = "$(type_of "$want")" ] || echo "$want $d"
done
