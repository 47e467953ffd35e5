// Package network knows the pod networks: a table with a file for each, which has everything that is particular to
// it. Prechecks, the installation, reset and proofs ask the table, and know no network by name.
//
// A new network is one file with its Network, a line of All, its name in the schema of cni.type, and its components
// in the catalog (manifest/catalog/data/network.yaml). The package does nothing on hosts: it says what others do.
package network
