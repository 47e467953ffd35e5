#!/bin/sh
# has-commands.sh NAME...: succeeds if the host has all of the commands.
for c; do command -v "$c" >/dev/null || exit 1; done
