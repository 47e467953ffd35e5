// Package adopt reads a cluster that kubeadm made for somebody else, and describes it with a cluster file, an inventory
// and a report. Look asks hosts and API server, and changes nothing; Describe, which is pure, judges what they said.
// Take makes the hosts nodes of kkbundle, and Undo gives them back.
package adopt
