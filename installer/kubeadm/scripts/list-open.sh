#!/bin/sh
# list-open.sh CLOSED PATH...: prints the files and directories in the paths that others than the owner can read, write or enter,
# at most 20 for a path. The files in the directory CLOSED do not count if the directory itself is closed.
own=$1
shift
for p; do
	[ ! -e "$p" ] || find "$p" -xdev -path "$own" ! -perm /077 -prune -o ! -type l -perm /077 -print | head -n 20 || exit 1
done
