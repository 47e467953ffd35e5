#!/bin/sh
# use-client.sh DIR FILE: makes FILE in DIR the kubelet's client certificate. The kubelet names it by a link.
set -eu
cd "$1"
sync "$2"
ln -sfn "$2" kkbundle-client.link
mv -fT kkbundle-client.link kubelet-client-current.pem
sync .
