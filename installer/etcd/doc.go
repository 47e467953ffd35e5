// Package etcd runs external etcd, adds and removes members of external and kubeadm's etcd, and schedules backups.
package etcd
