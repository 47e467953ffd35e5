#!/bin/sh
# list-existing.sh PATH...: prints which of the paths exist.
for p; do [ ! -e "$p" ] || printf '%s\n' "$p"; done
