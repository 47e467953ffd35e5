#!/bin/sh
# print-files.sh FILE...: prints the files that exist, each after a line with "file" and its name.
for f; do [ -e "$f" ] && echo "file $f" && cat "$f"; done
true
