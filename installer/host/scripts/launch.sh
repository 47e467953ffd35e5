#!/bin/sh
printf '%s %s\n' "$0" $$; printf '%s %s\n' "$0" $$ >&2; exec "$@"
