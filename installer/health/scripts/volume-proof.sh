#!/bin/sh
# volume-proof.sh AT TEXT write|read: writes a text to the volume that the processes of a pod see at AT, or compares what the
# volume has with the text and removes it.
for d in /proc/[0-9]*/root"$1"; do
	[ -d "$d" ] || continue
	case $3 in
	write) printf %s "$2" >"$d/proof" && sync "$d/proof" ;;
	read) [ "$(cat "$d/proof")" = "$2" ] && rm "$d/proof" ;;
	esac
	exit
done
echo "no process has $1" >&2
exit 1
