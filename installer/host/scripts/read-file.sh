#!/bin/sh
# read-file.sh PATH ABSENT: prints a file. ABSENT is the exit code if the file does not exist.
[ -e "$1" ] || exit "$2"
exec cat "$1"
