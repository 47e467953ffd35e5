// Package cluster has the tasks for any distribution's API server: readiness, admin.conf, labels and taints.
package cluster
