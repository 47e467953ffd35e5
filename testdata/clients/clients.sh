#!/usr/bin/env bash
# clients.sh: the programs that sites have, against what kkbundle serves. A small real bundle (images for two architectures, a
# chart, files, Debian and RPM packages made here) is built and served, and crane, skopeo, helm, containerd, curl, apt and dnf take
# what is theirs: one line for each requirement. What is not installed is named and skipped. Listens on 127.0.0.1 only, installs nothing
# outside its own directory, and stops what it started.
#
# Needs go, curl and skopeo; for the rest: dpkg-deb and apt-get, rpmbuild and dnf, and as root containerd with ctr (found in the PATH or where
# the lab compiled them). On Debian: apt-get install --no-install-recommends curl skopeo rpm dnf
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
"$top/testdata/needs.sh" curl:curl skopeo:skopeo
for optional in rpmbuild:rpm dnf:dnf; do "$top/testdata/needs.sh" "$optional" 2>/dev/null || true; done
dir=$(mktemp -d)
pids=()
cleanup() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"
export LC_ALL=C.UTF-8 KKBUNDLE_CACHE=$dir/cache DOCKER_CONFIG=$dir/docker HELM_CACHE_HOME=$dir/helm-cache HELM_CONFIG_HOME=$dir/helm-config
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1

failed=0
# ok WHAT COMMAND...: the command succeeds. Its output is shown where it does not.
ok() {
  local what=$1
  shift
  if "$@" >"$dir/out" 2>&1; then printf 'ok    %s\n' "$what"; else
    printf 'FAIL  %s\n' "$what"
    sed 's/^/      /' "$dir/out"
    failed=$((failed + 1))
  fi
}
skip() { printf 'skip  %s: %s\n' "$1" "$2"; }
have() { for p in "$@"; do command -v "$p" >/dev/null || return 1; done; }
same() { [ "$1" = "$2" ] || { printf '%q is not %q\n' "$1" "$2"; return 1; }; }
# until_answer FILE: what a server that was started prints when it is ready.
until_answer() { for _ in $(seq 600); do [ -s "$1" ] && return; sleep 0.1; done; echo "$1: nothing started" >&2; cat "${1%.out}.err" >&2; exit 1; }
sha() { sha256sum | cut -d' ' -f1; }

echo "Building kkbundle and clients; publishing the upstream's software"
go build -C "$top" -o "$dir/crane" github.com/google/go-containerregistry/cmd/crane
cp "$top/go.mod" helm.mod && cp "$top/go.sum" helm.sum # helm's program needs modules that its library does not
go build -C "$top" -modfile="$dir/helm.mod" -mod=mod -o "$dir/helm" helm.sh/helm/v3/cmd/helm
(cd "$top/testdata/lab" && go build -trimpath -buildvcs=false -o "$dir/lab" .)
"$dir/lab" build --small
"$dir/lab" upstream --small --state "$dir" >lab.out 2>lab.err &
pids+=($!)
until_answer lab.out
PATH=$dir:$top/bin:$PATH

# deb NAME VERSION FIELDS: a Debian package; rpm likewise.
deb() {
  mkdir -p "tree-$1/DEBIAN" "tree-$1/usr/share/kk" && echo "$2" >"tree-$1/usr/share/kk/$1" && chmod -R go+rX,go-w "tree-$1"
  printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: A <a@example.org>\n%sDescription: test\n' "$1" "$2" "$3" >"tree-$1/DEBIAN/control"
  dpkg-deb --root-owner-group -b "tree-$1" "$1_$2_all.deb" >/dev/null
}
rpm_() {
  printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: test\nLicense: MIT\nBuildArch: noarch\n%s\n%%description\ntest\n%%files\n' "$1" "$2" "$3" >"$1.spec"
  rpmbuild -bb --quiet --define "_topdir $dir/rpm" --define "_rpmdir $dir" --define '_build_name_fmt %%{NAME}-%%{VERSION}.rpm' "$1.spec" >/dev/null 2>&1
}
packages=()
if have dpkg-deb apt-get; then
  deb kk-app 2.0 'Depends: kk-lib (>= 3)
' && deb kk-lib 3.1 ''
  packages+=(kk-app_2.0_all.deb kk-lib_3.1_all.deb)
fi
if have rpmbuild; then
  rpm_ kk-app 2.0 'Requires: kk-lib >= 3' && rpm_ kk-lib 3.1 ''
  packages+=(kk-app-2.0.rpm kk-lib-3.1.rpm)
fi
for p in "${packages[@]}"; do
  sed -i "/^sources:/i \\  - {name: $p, path: $p}" manifest.yaml
done
kkbundle build manifest.yaml 2>/dev/null
bundle=$dir/demo-1.0.0.kkb

kkbundle serve --listen 127.0.0.1:0 "$bundle" >serve.out 2>serve.err &
server=$!
pids+=("$server")
until_answer serve.out
url=$(sed 's,/$,,' serve.out)
host=${url#http://}
arch=$(go env GOARCH)
pause=registry.k8s.io/$(sed -n 's,^ *- registry.k8s.io/\(pause:.*\),\1,p' manifest.yaml)
digest=$(kkbundle inspect --json "$bundle" | tr -d ' \n' | grep -o "\"name\":\"$pause\",\"digest\":\"sha256:[0-9a-f]*" | grep -o 'sha256:[0-9a-f]*$')
file=github.com/lab/labapp/releases/download/v1.0.0/labapp_1.0.0_linux_$arch.tar.gz

# pulls HOST WHICH: what crane, skopeo, helm and containerd ask of any registry.
pulls() {
  local host=$1 which=$2
  ok "$which: crane digest $pause is that of the bundle" eval "same \$(crane digest --insecure '$host/$pause') $digest"
  ok "$which: crane ls lists the tag" eval "crane ls --insecure '$host/${pause%:*}' | grep -x '${pause##*:}'"
  ok "$which: crane catalog has the repository" eval "crane catalog --insecure '$host' | grep -x '${pause%:*}'"
  ok "$which: crane validate checks every layer, by tag and digest" eval "crane validate --remote '$host/$pause' --insecure && crane validate --remote '$host/${pause%:*}@$digest' --insecure"
  ok "$which: crane pulls one platform" crane pull --insecure --platform linux/arm64 "$host/$pause" "$dir/$which-arm64.tar"
  ok "$which: crane does not find what is not there" eval "! crane manifest --insecure '$host/${pause%:*}:none' 2>&1 | grep -v MANIFEST_UNKNOWN"
  ok "$which: skopeo copies all platforms of an image" skopeo --insecure-policy copy --all --src-tls-verify=false "docker://$host/$pause" "dir:$dir/$which-skopeo"
  ok "$which: skopeo inspects and lists tags" eval "skopeo inspect --tls-verify=false 'docker://$host/$pause' && skopeo list-tags --tls-verify=false 'docker://$host/${pause%:*}'"
  ok "$which: helm pulls the chart as an OCI artifact" helm pull --plain-http "oci://$host/charts.lab.example/stable/web" --version 1.0.0 -d "$dir"
  if [ -n "$ctr" ]; then
    mkdir -p "certs.d/${pause%%/*}"
    printf 'server = "http://%s/v2/%s"\n[host."http://%s/v2/%s"]\n  capabilities = ["pull", "resolve"]\n  override_path = true\n' "$host" "${pause%%/*}" "$host" "${pause%%/*}" >"certs.d/${pause%%/*}/hosts.toml"
    ok "$which: containerd pulls $pause by its upstream name" "${pull[@]}" --hosts-dir "$dir/certs.d" "$pause"
    "$ctr" -a "$dir/containerd.sock" images rm --sync "$pause" >/dev/null
  fi
}

# containerd, in directories of its own.
ctr=
containerd=$(command -v containerd || compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/kkbundle-lab/containerd-$arch-*/containerd" | head -n1 || true)
if [ -n "$containerd" ] && [ -x "$(dirname "$containerd")/ctr" ] && [ "$(id -u)" = 0 ]; then
  printf 'version = 2\nroot = "%s/c/root"\nstate = "%s/c/state"\ndisabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]\n[grpc]\n  address = "%s/containerd.sock"\n' "$dir" "$dir" "$dir" >containerd.toml
  "$containerd" --config containerd.toml >containerd.log 2>&1 &
  pids+=($!)
  for _ in $(seq 100); do [ -S containerd.sock ] && break; sleep 0.1; done
  if [ -S containerd.sock ]; then ctr=$(dirname "$containerd")/ctr; else cat containerd.log; failed=1; fi
  pull=("$ctr" -a "$dir/containerd.sock" images pull --snapshotter native)
  if "$ctr" images pull --help | grep -e --local >/dev/null; then pull+=(--local); fi # 2.x leaves pulls to the daemon otherwise, which has no settings here
else
  skip "containerd" "containerd with ctr, and root, are needed"
fi

pulls "$host" serve
if [ -n "$ctr" ]; then
  printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$host" "$host" >"certs.d/${pause%%/*}/hosts.toml"
  ok "serve: containerd pulls through a plain mirror, which gets ?ns=" "${pull[@]}" --hosts-dir "$dir/certs.d" "$pause"
fi

ok "serve: helm repo add, search and pull" eval "helm repo add k '$url/charts' && helm search repo k/web | grep 1.0 && helm pull k/web -d '$dir'"
ok "serve: helm pulls by the upstream repository's path" helm pull web --repo "$url/charts/charts.lab.example/stable" -d "$dir"
ok "serve: helm renders what it pulled" eval "helm template x '$dir'/web-1.0*.tgz | grep '^kind: Deployment'"

ok "serve: curl gets a file and its SHA256SUMS agree" eval "curl -fsS --create-dirs -o files/$file '$url/files/$file' && curl -fsS '$url/files/SHA256SUMS' | grep ' $file\$' | (cd files && sha256sum -c)"
ok "serve: curl continues a download" eval "head -c 1000 files/$file >part && curl -fsS -C - -o part '$url/files/$file' && cmp part files/$file"
ok "serve: curl asks for a range, and too much is 416" eval "same \"\$(curl -fsS -r 100-199 '$url/files/$file' | sha)\" \"\$(tail -c +101 files/$file | head -c 100 | sha)\" && same \$(curl -sS -o /dev/null -w '%{http_code}' -r 99999999999- '$url/files/$file') 416"
ok "serve: curl with an ETag gets 304" eval "same \$(curl -sS -o /dev/null -w '%{http_code}' -H \"If-None-Match: \$(curl -fsSI '$url/files/$file' | tr -d '\r' | sed -n 's/^Etag: //Ip')\" '$url/files/$file') 304"
ok "serve: the page, health and metrics answer" eval "curl -fsS '$url/?q=pause' | grep 'docker pull $host/$pause' && curl -fsS '$url/healthz' && curl -fsS '$url/metrics' | grep kkbundle_serve"
ok "serve: writing is refused with 405" eval "same \$(curl -sS -o /dev/null -w '%{http_code}' -X POST '$url/v2/a/blobs/uploads/') 405"

if have dpkg-deb apt-get; then
  mkdir -p apt/etc/apt/{sources.list.d,preferences.d,apt.conf.d} apt/var/{lib/apt/lists/partial,cache/apt/archives/partial,lib/dpkg,log/apt} && : >apt/var/lib/dpkg/status
  echo "deb [trusted=yes] $url/apt/ /" >apt/etc/apt/sources.list
  apt=(apt-get -y -o "Dir=$dir/apt" -o "Dir::State::status=$dir/apt/var/lib/dpkg/status" -o APT::Sandbox::User=root -o Acquire::http::Proxy=DIRECT)
  ok "serve: apt-get update" "${apt[@]}" update
  # shellcheck disable=SC2016 # eval expands it
  ok "serve: apt-get downloads a package and what it depends on" eval '"${apt[@]}" install --download-only kk-app && cmp apt/var/cache/apt/archives/kk-app_2.0_all.deb kk-app_2.0_all.deb && cmp apt/var/cache/apt/archives/kk-lib_3.1_all.deb kk-lib_3.1_all.deb'
else
  skip "apt" "apt-get and dpkg-deb are needed"
fi
if have rpmbuild dnf; then
  # shellcheck disable=SC2034 # eval uses it
  dnf=(dnf -y --installroot "$dir/dnf" --releasever 1 --setopt "reposdir=$dir/repos" --setopt "cachedir=$dir/dnf-cache")
  ok "serve: dnf takes the offered kkbundle.repo" eval "curl -fsS --create-dirs -o repos/kkbundle.repo '$url/yum/kkbundle.repo' && \"\${dnf[@]}\" makecache"
  # shellcheck disable=SC2016 # eval expands it
  ok "serve: dnf downloads a package and what it depends on" eval '"${dnf[@]}" install --downloadonly --destdir "$dir/got" kk-app && cmp got/kk-app-2.0-1.noarch.rpm kk-app-2.0.rpm 2>/dev/null || cmp got/kk-app-2.0.rpm kk-app-2.0.rpm'
else
  skip "dnf" "dnf and rpmbuild are needed"
fi

# A bundle that is replaced while it is served.
cp "$bundle" new.kkb && mv new.kkb "$bundle" && kill -HUP "$server"
for _ in $(seq 1800); do grep -q '^reloaded$' serve.err && break; sleep 0.1; done
ok "serve: it took up the new file" grep '^reloaded$' serve.err
ok "serve: the bundle was replaced, and crane still pulls" crane validate --remote "$host/$pause" --insecure

# The registry that can be written to.
if kkbundle registry serve --help 2>&1 | grep -e --dir >/dev/null; then
  kkbundle registry serve --dir "$dir/registry" --listen 127.0.0.1:0 --delete >registry.out 2>registry.err &
  pids+=($!)
  until_answer registry.out
  own=$(sed 's,^http://,,; s,/$,,' registry.out)
  ok "registry: kkbundle push seeds it" kkbundle push --plain-http --registry "$own" "$bundle"
  pulls "$own" registry
  ok "registry: crane pushes, and pulls what it pushed" eval "crane push --insecure serve-arm64.tar '$own/pushed/crane:1' && crane validate --remote '$own/pushed/crane:1' --insecure"
  ok "registry: crane copies an index to another name" eval "crane copy --insecure '$host/$pause' '$own/pushed/copy:1' && same \$(crane digest --insecure '$own/pushed/copy:1') $digest"
  ok "registry: skopeo pushes all platforms" skopeo --insecure-policy copy --all --dest-tls-verify=false "dir:$dir/serve-skopeo" "docker://$own/pushed/skopeo:1"
  ok "registry: helm pushes a chart, and pulls it" eval "helm push --plain-http web-1.0*.tgz 'oci://$own/pushed' && helm pull --plain-http 'oci://$own/pushed/web' --version 1.0.0 -d '$dir'"
  ok "registry: crane deletes, and it is gone" eval "crane delete --insecure '$own/pushed/crane@'\$(crane digest --insecure '$own/pushed/crane:1') && ! crane manifest --insecure '$own/pushed/crane:1'"
fi

[ "$failed" = 0 ] || { echo "$failed failed"; exit 1; }
