// Package containerd has only a test: containerd's own client pulls from kkbundle's two servers, with its parallel
// range requests. It is a module of its own, so that kkbundle does not depend on containerd.
package containerd
