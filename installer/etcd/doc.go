// Package etcd runs etcd beside the cluster, adds and removes members of both kinds of etcd, and saves copies by a timer.
package etcd
