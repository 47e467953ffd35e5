#!/bin/sh
# write-file.sh PATH MODE SIZE: writes a file atomically from standard input and prints "changed" or "same". SIZE is the file's
# size: standard input also ends when the connection does, and a partial file must not get the final name. An identical file
# is left alone, with its times. With the MODE "keep", the file keeps mode and owner, and symbolic links are followed.
set -eu
umask 077
mode=$2 owner=0:0
if [ "$mode" = keep ]; then
	mode=0644
	if [ -e "$1" ]; then
		set -- "$(readlink -f "$1")" "$2" "$3"
		mode=$(stat -c %a "$1")
		owner=$(stat -c %u:%g "$1")
	fi
fi
d=$(dirname "$1")
t="$d/.$(basename "$1").kkbundle"
[ ! -d "$1" ] || { echo "$1 is a directory" >&2; exit 1; }
[ -d "$d" ] || (umask 022; mkdir -p "$d")
rm -f "$t"
trap 'rm -f "$t"' EXIT
trap 'exit 1' HUP INT TERM
set -C
cat >"$t"
set +C
[ "$(wc -c <"$t")" -eq "$3" ] || { echo "the content was cut off on its way to $1" >&2; exit 1; }
chmod "$mode" "$t"
chown "$owner" "$t"
if [ -f "$1" ] && [ ! -h "$1" ] && [ "$(sha256sum <"$t")" = "$(sha256sum <"$1")" ] && [ "$(stat -c '%a %u %g' "$1")" = "$(stat -c '%a %u %g' "$t")" ]; then
	echo same
else
	sync "$t"
	mv -f "$t" "$1"
	sync "$d"
	echo changed
fi
