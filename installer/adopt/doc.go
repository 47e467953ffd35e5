// Package adopt reads a cluster that kubeadm made for somebody else, and describes it with a cluster file, an inventory
// and a report. It changes nothing. Look asks hosts and API server; Describe, which is pure, judges what they said.
package adopt
