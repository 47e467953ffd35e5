#!/bin/sh
# keep-containerd.sh DIR [UNIT DATABASE [PATH NAME]...]: copies each existing PATH to DIR/files/NAME, and records whether UNIT is active
# and enabled and whether DATABASE exists. DIR appears when it is complete.
set -e
dir=$1
shift
part=$dir.part
rm -rf "$part"
mkdir -p "$part"
chmod 0700 "$part"
if [ "$#" -gt 0 ]; then
	if systemctl is-active --quiet "$1"; then : >"$part/active"; fi
	if systemctl is-enabled --quiet "$1" 2>/dev/null; then : >"$part/enabled"; fi
	if [ -e "$2" ]; then : >"$part/data"; fi
	shift 2
fi
while [ "$#" -gt 0 ]; do
	if [ -e "$1" ]; then
		mkdir -p "$part/files"
		cp --archive "$1" "$part/files/$2"
	fi
	shift 2
done
: >"$part/complete"
sync -f "$part"
rm -rf "$dir"
mv -T "$part" "$dir"
