// Package helper holds the programs that kkbundle puts on hosts and into pods, for one architecture or both, each as a
// stream of package packed. Code that runs there comes with the kkbundle that the operator already trusts, never with
// a bundle.
package helper

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/kkbundle/kkbundle/internal/packed"
)

//go:embed bin
var files embed.FS

// Binaries returns a function that returns kkbundle-node for a Linux architecture in Go's spelling ("amd64",
// "arm64"). It unpacks each once, for any number of hosts.
func Binaries() func(arch string) ([]byte, error) {
	var lock sync.Mutex
	unpacked := map[string][]byte{}
	return func(arch string) ([]byte, error) {
		lock.Lock()
		defer lock.Unlock()
		if b := unpacked[arch]; b != nil {
			return b, nil
		}
		b, err := program("kkbundle-node", arch)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("this kkbundle carries no helper for linux/%s: hosts are amd64 or arm64, and `make build-all` puts both helpers in", arch)
		}
		unpacked[arch] = b
		return b, err
	}
}

// dir returns the directory of the programs.
func dir() fs.FS {
	sub, err := fs.Sub(files, "bin")
	if err != nil {
		panic(err) // a valid path
	}
	return sub
}

func program(name, arch string) ([]byte, error) { return packed.Program(dir(), name, arch) }
