// Package kubeadm makes nodes with kubeadm: configuration, kubelet, init, join, security levels, certificate renewal.
package kubeadm
