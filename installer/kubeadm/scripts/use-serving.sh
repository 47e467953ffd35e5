#!/bin/sh
# use-serving.sh NEW PKI: puts the API server's certificate and key in directory NEW into use in PKI. Without a key in NEW, an earlier
# run has moved the key and was killed.
set -eu
if [ -e "$1/apiserver.key" ]; then
	sync "$1/apiserver.key" "$1/apiserver.crt"
	mv -f "$1/apiserver.key" "$2/apiserver.key"
fi
mv -f "$1/apiserver.crt" "$2/apiserver.crt"
sync "$2"
rm -rf "$1"
