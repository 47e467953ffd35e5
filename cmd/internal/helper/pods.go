package helper

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Programs are the programs of a registry in a foreign cluster. Registry is a gzip stream, the others are as they are executed.
type Programs struct{ Start, Proxy, Registry []byte }

// maxProgram limits an unpacked program.
const maxProgram = 64 << 20

// PodPrograms returns the programs for nodes of a Linux architecture in Go's spelling ("amd64", "arm64").
func PodPrograms(arch string) (Programs, error) {
	var p Programs
	for _, one := range []struct {
		name   string
		data   *[]byte
		packed bool
	}{{"kkbundle-start", &p.Start, false}, {"kkbundle-proxy", &p.Proxy, false}, {"kkbundle-registry", &p.Registry, true}} {
		data, err := files.ReadFile("bin/" + one.name + "-" + arch + ".gz")
		if errors.Is(err, fs.ErrNotExist) {
			return Programs{}, fmt.Errorf("this kkbundle carries no %s for linux/%s: nodes are amd64 or arm64, and `make build` puts both in", one.name, arch)
		}
		if err == nil && !one.packed {
			data, err = unpack(data)
		}
		if err != nil {
			return Programs{}, fmt.Errorf("%s for linux/%s: %w", one.name, arch, err)
		}
		*one.data = data
	}
	return p, nil
}

func unpack(data []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(z, maxProgram+1))
	if err == nil && len(all) > maxProgram {
		err = fmt.Errorf("more than %d bytes", maxProgram)
	}
	return all, err
}
