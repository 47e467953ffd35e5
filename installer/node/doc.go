// Package node is the code of kkbundle-node on a host, and the other side of its protocols.
//
// Collect describes a machine, and DialStdio connects a TCP connection made on the host to a Dialer on the other side,
// over standard input and output. Everything uses the streams of one command. Only ServeListen opens ports, while its
// command runs; ServeReach of other hosts dials them to find out whether the hosts reach each other. Files come by
// package transfer; all protocols are messages of package wire.
//
// It imports only the standard library, golang.org/x/sys and leaves, so that the helper stays small.
package node
