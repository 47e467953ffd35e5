#!/usr/bin/env bash
# record.sh: runs session.sh for real, in the lab: an upstream that publishes genuine software, and two Debian hosts without a route out. It
# writes docs/recording.cast, the output with its times, and docs/recording.svg, the picture of it. Needs root and the lab (testdata/lab).
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
lab="$dir/bin/lab" upstream=
cleanup() {
  [ -z "$upstream" ] || kill "$upstream" 2>/dev/null || true
  "$lab" down --state "$dir" || true
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT

mkdir "$dir/bin" "$dir/.ssh"
(cd "$top/testdata/lab" && go build -trimpath -buildvcs=false -o "$lab" .)
(cd "$top" && go build -trimpath -buildvcs=false -o "$dir/bin/recording" ./cmd/internal/recording)
export KKBUNDLE_LAB=${KKBUNDLE_LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/kkbundle-lab}
"$lab" build
"$lab" upstream --state "$dir" >"$dir/address" &
upstream=$!
for _ in $(seq 600); do [ -s "$dir/address" ] && break; sleep 0.1; done
[ -s "$dir/address" ] || { echo "the upstream did not start"; exit 1; }
"$lab" up --hosts 2 --state "$dir"
cp "$dir/known_hosts" "$dir/.ssh/known_hosts"

# kkbundle, where an operator has it: beside the hosts at the site, with the upstream where bundles are built
cat >"$dir/bin/kkbundle" <<END
#!/bin/sh
case \$1 in
build) exec "$top/bin/kkbundle" "\$@" ;;
*) exec "$lab" exec --state "$dir" "$top/bin/kkbundle" "\$@" ;;
esac
END
chmod 755 "$dir/bin/kkbundle"
cd "$dir"
env -i HOME="$dir" PATH="$dir/bin:$PATH" DOCKER_CONFIG="$dir/docker" KKBUNDLE_LAB="$KKBUNDLE_LAB" \
  "$dir/bin/recording" record "$top/testdata/recording/session.sh" "$dir/recording.cast"
recording="$dir/bin/recording"
cp "$dir/recording.cast" "$top/docs/recording.cast"
"$recording" draw "$top/docs/recording.cast" "$top/docs/recording.svg"
