#!/bin/sh
# uninstall-foreign.sh: runs the uninstallers of k3s and RKE2, and kubeadm reset, as far as the host has them.
for s in k3s-uninstall.sh k3s-agent-uninstall.sh rke2-uninstall.sh; do
	if p=$(command -v "$s"); then "$p"; fi
done
if command -v kubeadm >/dev/null; then kubeadm reset --force || true; fi
if systemctl cat kubelet.service >/dev/null 2>&1; then systemctl disable --now kubelet.service; fi
