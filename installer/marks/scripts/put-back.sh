#!/bin/sh
# put-back.sh KEPT ROOT PATH...: replaces files below ROOT by the copies below KEPT, each at once. A file without a copy stays.
set -eu
umask 077
kept=$1 root=$2
shift 2
for p; do
	from=$kept/$p to=$root$p
	[ -e "$from" ] || continue
	cmp -s "$from" "$to" && continue
	new=${to%/*}/.kkbundle-new # the kubelet ignores manifests whose name begins with a dot
	cp --archive --force "$from" "$new"
	sync "$new"
	mv -f "$new" "$to"
done
