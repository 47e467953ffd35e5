// Package cluster has the tasks that need only an API server of any distribution: labels and taints, admin.conf, waiting
// for the API.
package cluster
