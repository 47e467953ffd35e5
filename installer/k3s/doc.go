// Package k3s makes nodes with k3s, one program for runtime, kubelet, control plane and etcd. The lab cannot download
// k3s, so only unit tests of commands and files cover it.
package k3s
