#!/usr/bin/env bash
# demo.sh: the way of a byte, on real input. A small upstream with TLS and authentication (the CNCF registry with images for
# two architectures, published like real ones; a chart; a file with its checksum), then lock, build, verify, inspect, push
# to a registry of the site, and pulls by a standard client, with upstream's digests beside the pulled ones. What is in the
# images is compiled in seconds, and nothing besides Go is needed. Listens on 127.0.0.1 only and stops what it started.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top/testdata/lab"
dir=$(mktemp -d)
pids=()
cleanup() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

echo "Publishing the upstream's software"
go build -trimpath -buildvcs=false -o "$dir/lab" . # with the flags of make build, so that nothing is compiled twice
"$dir/lab" build --small
"$dir/lab" upstream --small --state "$dir" >"$dir/address" &
pids+=($!)
for _ in $(seq 100); do [ -s "$dir/address" ] && break; sleep 0.1; done
upstream=$(cat "$dir/address")
[ -n "$upstream" ] || { echo "the upstream did not start"; exit 1; }
echo "An upstream with TLS and authentication answers on $upstream"

cd "$dir"
export PATH=$top/bin:$PATH KKBUNDLE_CACHE=$dir/cache DOCKER_CONFIG=$dir/docker
cat manifest.yaml
say kkbundle lock manifest.yaml
say kkbundle build --locked manifest.yaml
say kkbundle verify demo-1.0.0.kkb
say kkbundle inspect demo-1.0.0.kkb

echo
echo "A file, as the site gets it:"
arch=$(go env GOARCH)
say kkbundle extract demo-1.0.0.kkb labapp --platform "linux/$arch" -o labapp.tar.gz
tar -tzvf labapp.tar.gz

echo
kkbundle registry serve --dir site --listen 127.0.0.1:0 --plain-http >site.out 2>site.err &
pids+=($!)
for _ in $(seq 100); do [ -s site.out ] && break; sleep 0.1; done
site=$(sed 's,^http://,,; s,/$,,' site.out)
[ -n "$site" ] || { cat site.err; exit 1; }
echo "An empty registry of the site answers on $site (kkbundle registry serve)"
say kkbundle push --plain-http --registry "$site" demo-1.0.0.kkb
echo
echo "Again: what is there is not sent again."
say kkbundle push --plain-http --registry "$site" demo-1.0.0.kkb >/dev/null

echo
echo "Pulled as crane does, upstream's digest beside the site's:"
mapfile -t images < <(kkbundle inspect demo-1.0.0.kkb | awk '$1 == "image" {print $2}')
./lab compare --state "$dir" "$upstream" "$site" "${images[@]}"
