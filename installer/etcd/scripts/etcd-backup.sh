#!/bin/sh
# Saves etcd with the command ETCDCTL to the directory DIR and keeps the newest KEEP copies: etcd-backup DIR KEEP HELPER RECIPIENTS
# ETCDCTL... A copy has its name when it is whole, checked and on the disk; the oldest go after that. With RECIPIENTS, one on each
# line, HELPER encrypts it.
set -eu
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
dir=$1 keep=$2 helper=$3 recipients=$4
shift 4
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock --nonblock 9 || { echo "another save is at work" >&2; exit 1; }
trap 'rm -f "$dir/.new.db" "$dir/.new.db.part" "$dir/.new.age"' EXIT
trap 'exit 1' HUP INT TERM
rm -f "$dir/.new.db" "$dir/.new.db.part" "$dir/.new.age"
"$@" snapshot save "$dir/.new.db"
# The last 32 bytes are the SHA-256 of all others.
want=$(tail -c 32 "$dir/.new.db" | od -An -v -tx1 | tr -d ' \n')
have=$(head -c -32 "$dir/.new.db" | sha256sum | cut -d ' ' -f 1)
[ "$want" = "$have" ] || { echo "what was saved is not what etcd sent" >&2; exit 1; }
etcdutl snapshot status "$dir/.new.db"
new=$dir/.new.db end=db
if [ -n "$recipients" ]; then
	new=$dir/.new.age end=db.age
	"$helper" encrypt "$recipients" <"$dir/.new.db" >"$new"
fi
sync "$new"
mv "$new" "$dir/etcd-$(date -u +%Y%m%dT%H%M%SZ).$end"
sync "$dir"
set -- "$dir"/etcd-*.db* # in the order of their times
while [ $# -gt "$keep" ]; do
	rm -f "$1"
	shift
done
