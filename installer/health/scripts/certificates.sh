#!/bin/sh
# certificates.sh: prints the certificates of Kubernetes, the site's registry and external etcd, and never keys. Files that have
# both are cut, kubeconfigs are decoded.
for f in /etc/kubernetes/pki/*.crt /etc/kubernetes/pki/etcd/*.crt /var/lib/kubelet/pki/kubelet-client-current.pem \
	/etc/kkbundle/registry/tls.crt /etc/kkbundle/etcd/*.crt /etc/kkbundle/etcd-client/client.crt; do
	[ -f "$f" ] || continue
	echo "# $f"
	sed -n '/-----BEGIN CERTIFICATE-----/,/-----END CERTIFICATE-----/p' "$f"
done
for f in /etc/kubernetes/*.conf; do
	[ -f "$f" ] || continue
	echo "# $f"
	sed -n 's/^ *client-certificate-data: *//p' "$f" | base64 -d 2>/dev/null
	echo
done
exit 0
