#!/usr/bin/env bash
# needs.sh COMMAND:PACKAGE...: makes sure that each command is there. As root on a Debian it installs the missing packages,
# otherwise it says which they are. Services that a package brings (sshd) are not started.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
missing=()
for need in "$@"; do
  command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]}; on Debian: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt-get -q update && apt-get -q install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 ||
  { cat "$log" >&2; echo "could not install: ${missing[*]}" >&2; exit 1; }
