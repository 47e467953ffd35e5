#!/bin/sh
# move-manifests.sh FROM TO NAME...: moves the manifests of static pods that the directory FROM has to the directory TO.
set -eu
umask 077
from=$1 to=$2
shift 2
[ -d "$from" ] || exit 0
mkdir -p "$to"
for n; do [ ! -e "$from/$n.yaml" ] || mv -f "$from/$n.yaml" "$to/"; done
