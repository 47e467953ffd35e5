#!/bin/sh
# use-serving.sh NEW PKI: puts the API server's certificate and key in directory NEW into use in PKI. See resume-serving.sh for a kill
# in between.
set -eu
sync "$1/apiserver.key" "$1/apiserver.crt"
mv -f "$1/apiserver.key" "$2/apiserver.key"
mv -f "$1/apiserver.crt" "$2/apiserver.crt"
sync "$2"
rm -rf "$1"
