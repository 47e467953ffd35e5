// Package bootstrap takes the steps of cloud-init and Ignition documents on one host, as Cluster API's infrastructure
// providers do with a machine's bootstrap data.
package bootstrap
