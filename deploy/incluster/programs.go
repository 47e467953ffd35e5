package incluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/klauspost/compress/zstd"
	corev1 "k8s.io/api/core/v1"
)

const (
	// chunkSize is the data of one ConfigMap. The API server accepts 1 MiB.
	chunkSize  = 1 << 20
	maxProgram = 256 << 20
	maxParts   = 40 // ConfigMaps of one program

	programs = "program" // the component label of ConfigMaps
	partKey  = "part"    // the only key of a ConfigMap with a program's part

	mounts   = "/kkbundle/"
	runDir   = mounts + "run"
	startKey = "kkbundle-start"
)

// A part is a ConfigMap's worth of a program. Its name has the program's digest: another program never changes a
// running pod's.
type part struct {
	name, key string
	data      []byte
}

func (p part) path() string { return mounts + p.name + "/" + p.key }

// archPrograms are the parts of the programs of an architecture.
type archPrograms struct {
	start           part
	proxy, registry []part
	registrySum     string // SHA-256 of the unpacked program
}

type programSet map[string]archPrograms

// with returns the set with the programs of one more architecture.
func (s programSet) with(arch string, p Programs) (programSet, error) {
	if len(p.Start) == 0 || len(p.Start) > chunkSize {
		return nil, fmt.Errorf("kkbundle-start has %d bytes; a ConfigMap holds at most %d", len(p.Start), chunkSize)
	}
	sum, err := unpackedSum(p.Registry)
	if err != nil {
		return nil, fmt.Errorf("kkbundle-registry: %w", err)
	}
	a := archPrograms{
		proxy: split("proxy-"+arch, p.Proxy), registry: split("registry-"+arch, p.Registry),
		registrySum: sum,
	}
	a.start = part{name: "start-" + arch + "-" + digest(p.Start), key: startKey, data: p.Start}
	if len(a.proxy) == 0 || len(a.proxy) > maxParts || len(a.registry) > maxParts {
		return nil, fmt.Errorf("kkbundle-proxy and kkbundle-registry have %d and %d parts; each must have 1 to %d",
			len(a.proxy), len(a.registry), maxParts)
	}
	if s == nil {
		s = programSet{}
	}
	s[arch] = a
	return s, nil
}

func split(prefix string, data []byte) []part {
	var list []part
	prefix += "-" + digest(data) + "-"
	for i := 0; len(data) > 0; i++ {
		n := min(chunkSize, len(data))
		list = append(list, part{name: prefix + strconv.Itoa(i), key: partKey, data: data[:n]})
		data = data[n:]
	}
	return list
}

// digest returns enough digits of the SHA-256 to tell programs of kkbundle's apart.
func digest(data []byte) string {
	const digits = 12
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:digits]
}

func unpackedSum(packed []byte) (string, error) {
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return "", err
	}
	defer z.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(z, maxProgram+1))
	if err == nil && n > maxProgram {
		err = errors.New("the program is too large")
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// all returns the parts that the registry or, without it, the proxy needs.
func (a archPrograms) all(withRegistry bool) []part {
	list := append([]part{a.start}, a.proxy...)
	if withRegistry {
		list = append(list, a.registry...)
	}
	return list
}

// command returns the command of a container: kkbundle-start puts kkbundle-proxy together, which runs with args.
func (a archPrograms) command(args ...string) []string {
	list := []string{a.start.path(), runDir + "/kkbundle-proxy"}
	for _, p := range a.proxy {
		list = append(list, p.path())
	}
	return append(append(list, "--", "kkbundle-proxy"), args...)
}

// registryCommand returns the command of the registry's container.
func (a archPrograms) registryCommand(args ...string) []string {
	unpack := []string{"unpack", runDir + "/kkbundle-registry", a.registrySum}
	for _, p := range a.registry {
		unpack = append(unpack, p.path())
	}
	return a.command(append(append(unpack, "--", "kkbundle-registry"), args...)...)
}

// volumes returns the volumes of parts and their mounts.
func volumes(parts []part) (list []corev1.Volume, at []corev1.VolumeMount) {
	const executable = 0o555
	for _, p := range parts {
		mode := int32(executable)
		list = append(list, corev1.Volume{
			Name: p.name,
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: p.name}, DefaultMode: &mode,
			}},
		})
		at = append(at, corev1.VolumeMount{Name: p.name, MountPath: mounts + p.name, ReadOnly: true})
	}
	return list, at
}
