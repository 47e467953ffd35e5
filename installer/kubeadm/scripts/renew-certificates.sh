#!/bin/sh
# Renews this control plane's certificates when one of those in the directory PKI ends within DAYS: renew-certificates DAYS HELPER PKI.
days=$1 helper=$2 pki=$3
rc=0
soon=$("$helper" expires "$days" "$pki" "$pki/etcd") || rc=$?
if [ "$rc" = 3 ]; then echo "nothing ends within $days days"; exit 0; fi
if [ "$rc" != 0 ]; then exit "$rc"; fi
echo "these end soon: $soon"
/usr/local/bin/kubeadm certs renew all || exit 1
