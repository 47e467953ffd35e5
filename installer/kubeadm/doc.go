// Package kubeadm makes nodes with kubeadm: its configuration and everything that other steps add to it, the kubelet,
// joining, security levels, certificates and their renewal.
package kubeadm
