// Package transfer brings files to a host: Receive runs there, in kkbundle-node, and Send on the other side. Only what
// the host lacks is sent; a file is complete and synced before it gets its name.
package transfer
