#!/bin/sh
# restore-containerd.sh DIR [PATH NAME]...: restores each PATH that keep-containerd.sh copied to DIR/files/NAME.
set -e
dir=$1
shift
while [ "$#" -gt 0 ]; do
	if [ -e "$dir/files/$2" ]; then
		mkdir -p "${1%/*}"
		rm -rf "$1.kkbundle-part"
		cp --archive "$dir/files/$2" "$1.kkbundle-part"
		sync -f "$1.kkbundle-part"
		rm -rf "$1"
		mv -T "$1.kkbundle-part" "$1"
	fi
	shift 2
done
