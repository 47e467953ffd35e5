// Package node is what kkbundle-node does on a host, and the other end of the protocols it speaks.
//
// Collect says what a machine is like, Receive takes files that a Send on the other side has, and DialStdio carries a
// TCP connection made on the host over standard input and output to a connection from Dialer on the other side.
// Everything goes over the streams of one command; ports are opened by ServeListen only, which ServeReach of other hosts
// dials to find out whether hosts reach each other, and for as long as its command runs.
//
// It imports the standard library and golang.org/x/sys only, so that the helper stays small.
package node
