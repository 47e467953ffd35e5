package iso_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/packages/iso"
)

// image unpacks one of testdata: the same directory as genisoimage -R, -J and neither write it, and xorriso with both.
func image(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".iso.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const app = "pool/main/a-long-directory-name-for-packages/x/Kk-App_1.0~rc1+b1_amd64.deb"

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rock", "joliet", "xorriso"} {
		data := image(t, name)
		i, err := iso.Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f, err := i.Open(app)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != strings.Repeat("a", 5000) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		files := 0
		err = i.Walk(func(path string, size int64) error {
			files++
			if path == app && size != 5000 {
				t.Errorf("%s: %s has %d bytes", name, path, size)
			}
			return nil
		})
		if err != nil || files != 63 {
			t.Errorf("%s: %d files, %v", name, files, err)
		}
		for _, path := range []string{"nothing", "README.txt/x", "pool/nothing"} {
			if _, err := i.Open(path); !errors.Is(err, iso.ErrNotExist) {
				t.Errorf("%s: %s: %v", name, path, err)
			}
		}
		if _, err := i.Open("pool"); err == nil {
			t.Errorf("%s: a directory was opened", name)
		}
	}
}

// TestLongRockRidgeName has a name that goes on in another sector.
func TestLongRockRidgeName(t *testing.T) {
	t.Parallel()
	data := image(t, "rock")
	i, err := iso.Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := i.Open("pool/" + strings.Repeat("n", 220) + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != "long" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOpenPlainNames(t *testing.T) {
	t.Parallel()
	data := image(t, "plain")
	i, err := iso.Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := i.Open("readme.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != "hello\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOpenCutOff(t *testing.T) {
	t.Parallel()
	data := image(t, "rock")
	for _, n := range []int{0, 100, 17 * 2048, 30 * 2048, len(data) - 200*2048} {
		i, err := iso.Open(bytes.NewReader(data[:n]), int64(n))
		if err == nil {
			err = i.Walk(func(string, int64) error { return nil })
		}
		if err == nil {
			t.Errorf("an image of %d bytes instead of %d was read", n, len(data))
		}
	}
}

func FuzzOpen(f *testing.F) {
	for _, name := range []string{"rock", "joliet", "xorriso", "plain"} {
		f.Add(image(f, name)[16*2048 : 30*2048]) // what is before the first descriptor is not read
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append(make([]byte, 16*2048), data...)
		i, err := iso.Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		opened := 0
		_ = i.Walk(func(path string, _ int64) error {
			if opened++; opened > 10 {
				return errors.New("enough")
			}
			if path == "" || strings.HasPrefix(path, "../") || strings.HasPrefix(path, "/") {
				t.Errorf("path %q", path)
			}
			if r, err := i.Open(path); err == nil && r.Size() > 1<<40 {
				t.Errorf("%s has %d bytes", path, r.Size())
			}
			return nil
		})
	})
}
