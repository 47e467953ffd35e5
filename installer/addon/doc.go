// Package addon installs all workloads of the cluster: the pod network, cluster DNS, services of the cluster file, and
// the operator's charts and manifests.
package addon
