// Package helper holds the programs that kkbundle puts on hosts and into pods, for both architectures. Code that runs there
// comes with the kkbundle that the operator already trusts, never with a bundle.
package helper

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
)

//go:embed bin
var files embed.FS

// Binary returns kkbundle-node for a Linux architecture in Go's spelling ("amd64", "arm64").
func Binary(arch string) ([]byte, error) {
	b, err := files.ReadFile("bin/kkbundle-node-" + arch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this kkbundle carries no helper for linux/%s: hosts are amd64 or arm64, and `make build` puts both helpers in", arch)
	}
	return b, err
}
