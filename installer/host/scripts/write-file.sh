#!/bin/sh
# write-file.sh PATH MODE SIZE: writes a file atomically from standard input and prints "changed" or "same". SIZE is the file's
# size: standard input also ends when the connection does, and a partial file must not get the final name. An identical file
# is left alone, with its times. With the MODE "keep", the file keeps mode, owner and SELinux label, and symbolic links are
# followed. Otherwise, the file gets the label that the host's SELinux policy has for it.
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
mode=$2 owner=0:0 label=
if [ "$mode" = keep ]; then
	mode=0644
	if [ -e "$1" ]; then
		set -- "$(readlink -f "$1")" "$2" "$3"
		mode=$(stat -c %a "$1")
		owner=$(stat -c %u:%g "$1")
		[ ! -e /sys/fs/selinux/enforce ] || label=$(stat -c %C "$1")
	fi
fi
# A host without matchpathcon lets the file inherit its directory's label; the precheck reports that.
if [ -z "$label" ] && [ -e /sys/fs/selinux/enforce ] && command -v matchpathcon >/dev/null; then
	label=$(matchpathcon -n -m file "$1")
	[ "$label" != '<<none>>' ] || label=
fi
type_of() { [ -z "$label" ] || stat -c %C "$1" 2>/dev/null | cut -d : -f 3; }
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
if [ -n "$label" ] && [ "$(type_of "$t")" != "$(echo "$label" | cut -d : -f 3)" ]; then
	chcon "$label" "$t" || { echo "SELinux label $label cannot be set on $1: mount $d without context=, or log in as a user who may relabel files" >&2; exit 1; }
fi
if [ -f "$1" ] && [ ! -h "$1" ] && [ "$(sha256sum <"$t")" = "$(sha256sum <"$1")" ] && [ "$(stat -c '%a %u %g' "$1")" = "$(stat -c '%a %u %g' "$t")" ] && [ "$(type_of "$1")" = "$(type_of "$t")" ]; then
	echo same
else
	sync "$t"
	mv -f "$t" "$1"
	sync "$d"
	echo changed
fi
