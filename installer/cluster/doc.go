// Package cluster has the steps that ask an API server only, whichever distribution made it: labels and taints,
// admin.conf, waiting for the API.
package cluster
