// Package programs checks the parts of a cluster file that are merged into the configuration of kubeadm, the kubelet
// and kube-proxy: their shape, and that a value that kkbundle uses has one place in the cluster file. It lists the
// arguments and feature gates in them, by program.
package programs
