// Package regzip tells which encoder made a gzip stream, and makes the stream again from its content, bit for bit.
//
// Layers of container images are gzip streams whose digests cover the compressed bytes. A delta or a pack that works
// on the content must give back exactly these bytes. Identify tries the known encoders; Recipe.NewWriter repeats the
// one that was found.
//
// An encoder is named by an ID. An ID is part of what kkbundle writes into files, so its bytes never change: the
// tests hold digests of each encoder's output. When a toolchain or library changes its output, the test fails, and
// the old encoder must be kept under its ID.
//
//	go1.26/1 … go1.26/9          compress/gzip of Go up to 1.26: docker, BuildKit, containerd, go-containerregistry, ko, kaniko
//	klauspost1.20/1 … 9          klauspost/compress 1.18.7 to 1.20.3, and compress/gzip of Go 1.27
//	pgzip1.20/1 … 9              klauspost/pgzip with that library: blocks of 1 MiB: podman, buildah, skopeo
//	klauspost1.17/1 … 9          klauspost/compress 1.16.7 to 1.17.11, and 1.18.0 except for level 4
//	pgzip1.17/1 … 9              klauspost/pgzip with that library: podman, buildah, skopeo before that
//	zlib/1 … zlib/9              zlib's deflate at its usual window and memory level: Python, Java, bazel
//	gnu/1 … gnu/9                GNU gzip
//	pigz/1 … pigz/9              pigz with two threads or more: parts of 128 KiB; Debian's base images
//
// The library of klauspost1.17 is klauspost/compress 1.17.11 under another name (replace in go.mod): its package
// flate imports the standard library only, so it can be linked beside the newer one.
//
// Other generations of klauspost/compress, streams of several gzip members and streams with flushes in them are not
// identified; such streams stay as they are.
package regzip
