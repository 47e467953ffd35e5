// Package clusterapi makes a cluster one that manages others. Its control planes get clusterctl with a repository of
// the bundle's files, and clusterctl installs Cluster API's controllers from there without a connection.
package clusterapi
