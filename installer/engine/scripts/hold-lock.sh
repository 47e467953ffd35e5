#!/bin/sh
# hold-lock.sh FILE SECONDS: writes its first line of input to FILE, if the disk has room for it, and prints the line when that
# is done. It runs until its input ends or is silent for SECONDS.
IFS= read -r owner || exit 1
printf '%s\n' "$owner" >"$1"
printf '%s\n' "$owner"
while [ "$(timeout "$2" head -c 1)" = . ]; do :; done
