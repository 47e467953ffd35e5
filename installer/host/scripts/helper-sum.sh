#!/bin/sh
# helper-sum.sh PATH: prints the SHA-256 of a file that only root can change, and nothing for any other file.
if [ -f "$1" ] && [ ! -h "$1" ] && [ "$(stat -c '%a %u' "$1")" = "700 0" ]; then
	sha256sum <"$1" || true
fi
