package helper

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/kkbundle/kkbundle/internal/packed"
)

// Programs are the programs of a registry in a foreign cluster. Registry is a zstd stream, the others are as they are
// executed.
type Programs struct{ Start, Proxy, Registry []byte }

// Registry returns kkbundle-registry for this machine.
func Registry() ([]byte, error) {
	b, err := program("kkbundle-registry", runtime.GOARCH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this kkbundle carries no kkbundle-registry for linux/%s: build it with `make build`",
			runtime.GOARCH)
	}
	return b, err
}

// PodPrograms returns the programs for nodes of a Linux architecture in Go's spelling ("amd64", "arm64").
func PodPrograms(arch string) (Programs, error) {
	var p Programs
	for _, one := range []struct {
		name string
		data *[]byte
		read func(name, arch string) ([]byte, error)
	}{
		{"kkbundle-start", &p.Start, program},
		{"kkbundle-proxy", &p.Proxy, program},
		{packed.Dictionary, &p.Registry, stream},
	} {
		data, err := one.read(one.name, arch)
		if errors.Is(err, fs.ErrNotExist) {
			return Programs{}, fmt.Errorf(
				"this kkbundle carries no %s for linux/%s: nodes are amd64 or arm64, and `make build-all` puts both in",
				one.name, arch)
		}
		if err != nil {
			return Programs{}, err
		}
		*one.data = data
	}
	return p, nil
}

func stream(name, arch string) ([]byte, error) { return packed.Stream(dir(), name, arch) }
