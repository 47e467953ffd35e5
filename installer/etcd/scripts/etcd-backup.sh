#!/bin/sh
# Saves etcd with the command ETCDCTL to the directory DIR and keeps the newest KEEP copies: etcd-backup DIR KEEP DATA HELPER
# RECIPIENTS S3 PLACE ETCDCTL... A copy has its name when it is whole, checked and on the disk; the oldest go after that. DATA is
# etcd's directory. With RECIPIENTS, one on each line, HELPER encrypts the copy. With the file S3, HELPER sends it to that storage,
# below PLACE; the copy here stays in any case. A member that hangs does not hold the lock: etcd's maximum of 8 GiB comes in ten minutes at
# 15 MB/s.
set -eu
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
dir=$1 keep=$2 data=$3 helper=$4 recipients=$5 s3=$6 place=$7
shift 7
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock --nonblock 9 || { echo "another save is at work" >&2; exit 1; }
trap 'rm -f "$dir/.new.db" "$dir/.new.db.part" "$dir/.new.age"' EXIT
trap 'exit 1' HUP INT TERM
rm -f "$dir/.new.db" "$dir/.new.db.part" "$dir/.new.age"
# No copy fills the disk.
size=$(stat -c %s "$data/member/snap/db" 2>/dev/null || echo 0)
[ -z "$recipients" ] || size=$((size * 2))
free=$(df --output=avail --block-size=1 "$dir" | tail -n 1)
if [ "$((free - size))" -lt 1073741824 ]; then
	echo "nothing was saved: a copy takes $((size / 1048576)) MiB, $((free / 1048576)) MiB are free for $dir, and 1024 MiB stay free; make room, or lower etcd.backup.keep" >&2
	exit 1
fi
timeout 600 "$@" snapshot save "$dir/.new.db" || {
	[ $? -ne 124 ] || echo "etcd did not send a copy within 10 minutes; kkbundle status shows its members" >&2
	exit 1
}
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
made=$dir/etcd-$(date -u +%Y%m%dT%H%M%SZ).$end
mv "$new" "$made"
sync "$dir"
set -- "$dir"/etcd-*.db* # in the order of their times
while [ $# -gt "$keep" ]; do
	rm -f "$1"
	shift
done
[ -z "$s3" ] || "$helper" put "$s3" "$made" "$place"
