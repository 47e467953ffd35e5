#!/usr/bin/env bash
# conformance.sh VERSION: the OCI conformance suite (github.com/opencontainers/distribution-spec/conformance) against `kkbundle registry serve`
# on loopback. It prints the suite's table and fails if a check fails. Everything is below a directory that it removes.
set -euo pipefail
version=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
server=
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
  rm -rf "$dir"
}
trap cleanup EXIT
GOBIN=$dir go install "github.com/opencontainers/distribution-spec/conformance@$version"
"$top/bin/kkbundle" registry serve --dir "$dir/registry" --listen 127.0.0.1:0 --delete >"$dir/address" 2>"$dir/log" &
server=$!
for _ in $(seq 300); do
  grep -q http "$dir/address" && break
  kill -0 "$server" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
  sleep 0.1
done
address=$(grep -o '127.0.0.1:[0-9]*' "$dir/address" | head -1)
cd "$dir"
status=0
OCI_REGISTRY=$address OCI_TLS=disabled OCI_VERSION=1.1 OCI_RESULTS_DIR=$dir/results timeout 900 ./conformance >"$dir/out" 2>&1 || status=$?
grep 'failed test' "$dir/out" | cut -c1-300 || true
grep -v 'level=' "$dir/out"
exit "$status"
