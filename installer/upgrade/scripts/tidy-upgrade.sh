#!/bin/sh
# tidy-upgrade.sh list|remove KEPT TMP: what a finished upgrade leaves on a node and no rollback needs: in the copies KEPT the programs,
# which the bundle has, and keys and credentials; and kubeadm's own copies in TMP.
set -eu
set -- "$@" "$2"/*/usr "$2"/*/opt "$2"/*/etc/kubernetes/[!m]* "$3"/kubeadm-* # [!m]: all but the manifests
do=$1 kept=$2
shift 3
for p; do
	[ -e "$p" ] || continue
	case $p in
	"$kept"/*)
		release=${p#"$kept/"}
		[ -e "$kept/${release%%/*}/finished" ] || continue
		;;
	esac
	if [ "$do" = list ]; then echo "$p"; else rm -rf -- "$p"; fi
done
