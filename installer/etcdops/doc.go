// Package etcdops is what operators do with etcd: save and restore a snapshot, list and fetch the copies that hosts
// save, defragment, and look at the databases. How etcd is installed is in package etcd.
package etcdops
