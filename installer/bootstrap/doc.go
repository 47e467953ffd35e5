// Package bootstrap applies the steps of cloud-init and Ignition documents to one host, as Cluster API's infrastructure
// providers do with a machine's bootstrap data.
package bootstrap
