//go:build linux

package sitetest

import (
	"crypto/sha256"
)

// EtcdCopy is what etcd saves, as far as its checksum goes: pages and the SHA-256 of them.
func EtcdCopy(text string) []byte {
	const page = 4096
	body := make([]byte, page)
	copy(body, text)
	sum := sha256.Sum256(body)
	return append(body, sum[:]...)
}
