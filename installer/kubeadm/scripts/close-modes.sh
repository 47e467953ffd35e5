#!/bin/sh
# close-modes.sh PATH...: takes away the rights of everybody but the owner to the paths, with all that is in them.
for p; do
	[ ! -e "$p" ] || find "$p" -xdev ! -type l -perm /077 -exec chmod go-rwx {} + || exit 1
done
