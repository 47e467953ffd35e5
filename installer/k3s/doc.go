// Package k3s makes nodes with k3s, which has runtime, kubelet, control plane and etcd in one program. No lab run has
// seen a real k3s: its program cannot be had there. Unit tests prove the commands and files.
package k3s
