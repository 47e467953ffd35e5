// Package packagestest makes keys, packages and signed repositories for tests.
package packagestest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// A Key signs repositories.
type Key struct {
	entity *openpgp.Entity
	config *packet.Config
}

// NewKey makes a key created at a time, which expires after lifetime, 0 for never. It also signs at that time.
func NewKey(t testing.TB, at time.Time, lifetime time.Duration) *Key {
	t.Helper()
	config := &packet.Config{
		Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return at },
		KeyLifetimeSecs: uint32(lifetime / time.Second),
	}
	entity, err := openpgp.NewEntity("test", "", "test@example.org", config)
	if err != nil {
		t.Fatal(err)
	}
	return &Key{entity, config}
}

// Public returns the key as a keyring.
func (k *Key) Public(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := k.entity.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Clear returns a text with the signatures of keys around it.
func Clear(t testing.TB, text []byte, keys ...*Key) []byte {
	t.Helper()
	var b bytes.Buffer
	var private []*packet.PrivateKey
	for _, k := range keys {
		private = append(private, k.entity.PrivateKey)
	}
	w, err := clearsign.EncodeMulti(&b, private, keys[0].config)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), '\n')
}

// Detached returns an armored signature.
func (k *Key) Detached(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := openpgp.ArmoredDetachSign(&b, k.entity, bytes.NewReader(data), k.config); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A Deb is a Debian package.
type Deb struct {
	Name, Version, Arch string
	Fields              string            // more lines of its control file, each with its end
	Files               map[string]string // by path without a leading slash
}

// File returns its file name.
func (d Deb) File() string {
	_, version, epoch := strings.Cut(d.Version, ":")
	if !epoch {
		version = d.Version
	}
	return d.Name + "_" + version + "_" + d.Arch + ".deb"
}

func (d Deb) control() string {
	return fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: A <a@example.org>\n%sDescription: test\n of a package\n", d.Name, d.Version, d.Arch, d.Fields)
}

// Bytes returns the package's file.
func (d Deb) Bytes(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{
		{"debian-binary", []byte("2.0\n")},
		{"control.tar.gz", tarball(t, map[string]string{"control": d.control()})},
		{"data.tar.gz", tarball(t, d.Files)},
	} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		b.Write(m.data)
		if len(m.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

func tarball(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}))
	made := map[string]bool{"./": true}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		dirs := strings.Split(path.Dir(name), "/")
		for i := range dirs {
			dir := "./" + strings.Join(dirs[:i+1], "/") + "/"
			if path.Clean(dir) != "." && !made[dir] {
				made[dir] = true
				must(w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}))
			}
		}
		must(w.WriteHeader(&tar.Header{
			Name: "./" + name, Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(files[name])),
		}))
		_, err := w.Write([]byte(files[name]))
		must(err)
	}
	must(w.Close())
	must(z.Close())
	return b.Bytes()
}

// A Suite is a published suite of an archive.
type Suite struct {
	Name  string
	Archs []string // "all" among them also has lists of its own
	Debs  []Deb
	Date  time.Time
	Until time.Time // zero for none
}

// Write writes the archive into a directory, signed by keys if there are any.
func (s Suite) Write(t testing.TB, dir string, keys ...*Key) {
	t.Helper()
	lists := map[string][]byte{}
	for _, arch := range s.Archs {
		var b bytes.Buffer
		for _, d := range s.Debs {
			if d.Arch == arch || d.Arch == "all" && !slices.Contains(s.Archs, "all") {
				data := d.Bytes(t)
				file := "pool/main/" + d.Name[:1] + "/" + d.Name + "/" + d.File()
				WriteFile(t, filepath.Join(dir, file), data)
				fmt.Fprintf(&b, "%sFilename: %s\nSize: %d\nMD5sum: 0\nSHA256: %x\n\n", d.control(), file, len(data),
					sha256.Sum256(data))
			}
		}
		lists["main/binary-"+arch+"/Packages"] = b.Bytes()
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, err := z.Write(b.Bytes())
		if err == nil {
			err = z.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		lists["main/binary-"+arch+"/Packages.gz"] = packed.Bytes()
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "Origin: test\nSuite: stable\nCodename: %s\nDate: %s\n", s.Name, s.Date.UTC().Format(time.RFC1123))
	if !s.Until.IsZero() {
		fmt.Fprintf(&b, "Valid-Until: %s\n", s.Until.UTC().Format(time.RFC1123))
	}
	fmt.Fprintf(&b, "Acquire-By-Hash: yes\nArchitectures: %s\nComponents: main\nSHA256:\n", strings.Join(s.Archs, " "))
	base := filepath.Join(dir, "dists", s.Name)
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		sum := fmt.Sprintf("%x", sha256.Sum256(lists[name]))
		fmt.Fprintf(&b, " %s %d %s\n", sum, len(lists[name]), name)
		WriteFile(t, filepath.Join(base, path.Dir(name), "by-hash/SHA256", sum), lists[name])
	}
	WriteFile(t, filepath.Join(base, "Release"), b.Bytes())
	if len(keys) > 0 {
		WriteFile(t, filepath.Join(base, "InRelease"), Clear(t, b.Bytes(), keys...))
	}
}

// WriteFile writes a file and the directories above it.
func WriteFile(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
