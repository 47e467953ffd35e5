// Package member reads and writes the record of a node's cluster: the cluster's identity, and the settings that its
// creation fixed.
package member
