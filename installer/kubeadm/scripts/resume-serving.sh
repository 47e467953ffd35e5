#!/bin/sh
# resume-serving.sh NEW PKI: completes a use-serving.sh that was killed between the key and the certificate, and removes directory NEW.
# kubeadm writes a key before its certificate, so a certificate alone is one whose key is in use.
set -eu
if [ -e "$1/apiserver.crt" ] && [ ! -e "$1/apiserver.key" ]; then
	mv -f "$1/apiserver.crt" "$2/apiserver.crt"
	sync "$2"
fi
rm -rf "$1"
