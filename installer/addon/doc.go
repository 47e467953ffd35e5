// Package addon installs everything that runs in the cluster: the pod network, cluster DNS, services of the cluster
// file, charts and manifests of the operator.
package addon
