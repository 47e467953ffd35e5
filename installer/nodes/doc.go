// Package nodes adds nodes to a cluster and deletes them.
package nodes
