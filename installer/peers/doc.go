// Package peers has nodes take layers from each other, and from the site's registry what no node has yet. Spegel, a pod
// on each node, serves what the node's containerd holds; containerd of every node asks it before the registry.
//
// The registry alone says what a tag means: peers are asked for content by its digest only, so that a tag that was
// pushed anew is never answered with what a node has kept, and wrong bytes are refused by containerd.
package peers
