// Package helper holds the programs that kkbundle puts on hosts and into pods, for one architecture or both, each as a
// stream of package stream. Code that runs there comes with the kkbundle that the operator already trusts, never with
// a bundle.
package helper

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/kkbundle/kkbundle/cmd/internal/helper/stream"
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

// Dictionary is the program that every other one of its architecture is packed with: the largest, which is needed
// as a stream of its own, too.
const Dictionary = "kkbundle-registry"

// packed returns the stream of a program.
func packed(name, arch string) ([]byte, error) {
	return files.ReadFile("bin/" + name + "-" + arch + ".zst")
}

func program(name, arch string) ([]byte, error) {
	data, err := packed(name, arch)
	if err != nil {
		return nil, err
	}
	var dictionary []byte
	if name != Dictionary {
		if dictionary, err = program(Dictionary, arch); err != nil {
			return nil, err
		}
	}
	b, err := stream.Unpack(data, dictionary)
	if err != nil {
		return nil, fmt.Errorf("%s for linux/%s: %w", name, arch, err)
	}
	return b, nil
}
