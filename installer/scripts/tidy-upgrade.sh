#!/bin/sh
# tidy-upgrade.sh list|remove KEPT TMP: what a finished upgrade leaves on a node and no rollback needs: the programs in the
# copies KEPT, which the bundle has, and kubeadm's own copies in TMP.
set -eu
set -- "$@" "$2"/*/usr "$2"/*/opt "$3"/kubeadm-*
do=$1 kept=$2
shift 3
for p; do
	[ -e "$p" ] || continue
	case $p in "$kept"/*) [ -e "${p%/*}/finished" ] || continue ;; esac
	if [ "$do" = list ]; then echo "$p"; else rm -rf -- "$p"; fi
done
