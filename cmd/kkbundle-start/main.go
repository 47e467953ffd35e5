// Command kkbundle-start is the first program in the pods by which kkbundle deploy brings a registry into a cluster.
// It joins the files of a program, each mounted from a ConfigMap, and becomes that program:
//
//	kkbundle-start PROGRAM CHUNK... -- NAME ARGUMENT...
//
// It has to fit into one ConfigMap itself, 1 MiB, and the smallest Go program has 1.2 MB. So it runs without Go's
// runtime: the linker's -E makes entry the first instruction, and everything that entry reaches is nosplit, allocates
// nothing and makes system calls only.
package main

func main() { panic("link with -ldflags '-E main.entry', as make helper does") }
