// Package member reads and writes what a node remembers of its cluster: which cluster it belongs to, and the settings that
// were fixed when the cluster was made.
package member
