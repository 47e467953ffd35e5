#!/bin/sh
# same-files.sh KEPT ROOT PATH...: succeeds if each file below ROOT is the copy below KEPT. A file without a copy counts as the same.
kept=$1 root=$2
shift 2
for p; do [ ! -e "$kept/$p" ] || cmp -s "$kept/$p" "$root$p" || exit 1; done
