#!/usr/bin/env bash
# demo.sh: the way of a byte, on real input. A small upstream (registry, etcd, CoreDNS and pause compiled from source and
# published like the real ones, for two architectures; a chart; a file), then lock, build, verify, inspect, push to another
# registry, and pulls by a standard client, with upstream's digests beside the pulled ones. Listens on 127.0.0.1 only and
# stops what it started.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
"$top/testdata/needs.sh" skopeo:skopeo zstd:zstd
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

echo "Compiling and publishing the upstream's software (once; minutes on a machine that has compiled nothing of it yet)"
go build -o "$dir/lab" .
"$dir/lab" build --small
"$dir/lab" upstream --small --state "$dir" >"$dir/address" &
pids+=($!)
for _ in $(seq 100); do [ -s "$dir/address" ] && break; sleep 0.1; done
upstream=$(cat "$dir/address")
[ -n "$upstream" ] || { echo "the upstream did not start"; exit 1; }
echo "An upstream with TLS and authentication answers on $upstream"

cd "$dir"
mkdir certs && cp ca.pem certs/ca.crt # for skopeo
export PATH=$top/bin:$PATH KKBUNDLE_CACHE=$dir/cache DOCKER_CONFIG=$dir/docker
cat manifest.yaml
say kkbundle lock manifest.yaml
say kkbundle build --locked manifest.yaml
say kkbundle verify demo-1.0.0.kkb
say kkbundle inspect demo-1.0.0.kkb

echo
echo "The registry of the site is the one in the bundle:"
arch=$(go env GOARCH)
say kkbundle extract demo-1.0.0.kkb registry --platform "linux/$arch" -o registry.tar.gz
tar -xzf registry.tar.gz registry
site=127.0.0.1:$((20000 + RANDOM % 10000))
cat >registry.yaml <<EOF
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $dir/site}}
http: {addr: $site}
validation: {manifests: {indexes: {platforms: none}}}
EOF
OTEL_TRACES_EXPORTER=none ./registry serve registry.yaml >registry.log 2>&1 &
pids+=($!)
for _ in $(seq 100); do (exec 3<>"/dev/tcp/${site%:*}/${site#*:}") 2>/dev/null && break; sleep 0.1; done
[ ! -s registry.log ] || { cat registry.log; exit 1; }
say kkbundle push --plain-http --registry "$site" demo-1.0.0.kkb
echo
echo "Again: what is there is not sent again."
say kkbundle push --plain-http --registry "$site" demo-1.0.0.kkb >/dev/null

echo
echo "Pulled with skopeo, upstream's digest beside the site's:"
same=0
digest() { skopeo inspect --raw --authfile "$dir/docker/config.json" "$@" | sha256sum | cut -c1-16; }
while read -r image; do
  there=$(digest --cert-dir "$dir/certs" "docker://$upstream/$image")
  here=$(digest --tls-verify=false "docker://$site/$image")
  skopeo copy -q --src-tls-verify=false "docker://$site/$image" "oci:$dir/pulled:${image##*/}"
  printf '  %-45s %s %s\n' "$image" "$there" "$here"
  [ "$there" = "$here" ] || { echo "they differ"; exit 1; }
  same=$((same + 1))
done < <(kkbundle inspect demo-1.0.0.kkb | awk '$1 == "image" {print $2}')
echo "$same images, all the same."
