// Package kubeadm makes nodes with kubeadm: configuration, kubelet, init and join, security levels, certificate renewal.
package kubeadm
