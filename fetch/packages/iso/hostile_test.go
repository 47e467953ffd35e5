package iso_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages/iso"
)

const sector = 2048

// A hostileImage is a disk image made by hand, as no tool would.
type hostileImage []byte

func newHostileImage(sectors int, root []byte) hostileImage {
	i := make(hostileImage, sectors*sector)
	const rootAt = 18
	primary := i[16*sector:]
	copy(primary, "\x01CD001\x01")
	binary.LittleEndian.PutUint16(primary[128:], sector)
	copy(primary[156:], record("\x00", rootAt, len(root), true, nil))
	copy(i[17*sector:], "\xffCD001\x01")
	copy(i[rootAt*sector:], root)
	return i
}

func record(name string, at, size int, dir bool, use []byte) []byte {
	r := make([]byte, 33, 64)
	binary.LittleEndian.PutUint32(r[2:], uint32(at))
	binary.LittleEndian.PutUint32(r[10:], uint32(size))
	if dir {
		r[25] = 2
	}
	r[32] = byte(len(name))
	r = append(r, name...)
	if len(r)%2 == 1 {
		r = append(r, 0)
	}
	r = append(r, use...)
	r[0] = byte(len(r))
	return r
}

// pack puts records into sectors, which none of them crosses.
func pack(records ...[]byte) []byte {
	var out []byte
	for _, r := range records {
		if len(out)%sector+len(r) > sector {
			out = append(out, make([]byte, sector-len(out)%sector)...)
		}
		out = append(out, r...)
	}
	return append(out, make([]byte, (sector-len(out)%sector)%sector)...)
}

func continuesAt(at, size int) []byte {
	f := make([]byte, 28)
	copy(f, "CE\x1c\x01")
	binary.LittleEndian.PutUint32(f[4:], uint32(at))
	binary.LittleEndian.PutUint32(f[20:], uint32(size))
	return f
}

func nameField(n int) []byte {
	return append([]byte{'N', 'M', byte(5 + n), 1, 0}, bytes.Repeat([]byte("n"), n)...)
}

func rockRoot(records ...[]byte) []byte {
	self := record("\x00", 18, sector, true, []byte("SP\x07\x01\xbe\xef\x00"))
	return pack(append([][]byte{self}, records...)...)
}

func walked(t *testing.T, i hostileImage) error {
	t.Helper()
	began := time.Now()
	image, err := iso.Open(bytes.NewReader(i), int64(len(i)))
	if err != nil {
		t.Fatal(err)
	}
	err = image.Walk(func(string, int64) error { return nil })
	t.Logf("%v after %v", err, time.Since(began))
	return err
}

// TestSharedChain has every file's name in the same chain of continuation areas, of 30 KB.
func TestSharedChain(t *testing.T) {
	t.Parallel()
	const chain, areas = 2000, 15
	root := rockRoot(slices.Repeat([][]byte{record("A", 18, 0, false, continuesAt(chain, sector))}, 8000)...)
	i := newHostileImage(2020, root)
	for n := range areas {
		area := bytes.Repeat(nameField(240), 8)
		if n < areas-1 {
			area = append(area, continuesAt(chain+n+1, sector)...)
		}
		copy(i[(chain+n)*sector:], area)
	}
	if err := walked(t, i); err == nil || !strings.Contains(err.Error(), "name of more than") {
		t.Errorf("names of 30 KB: %v", err)
	}
}

// TestSharedContinuations has the data about every file in the same chain, without names.
func TestSharedContinuations(t *testing.T) {
	t.Parallel()
	const chain, areas = 2000, 15
	root := rockRoot(slices.Repeat([][]byte{record("A", 18, 0, false, continuesAt(chain, sector))}, 8000)...)
	i := newHostileImage(2020, root)
	for n := range areas - 1 {
		copy(i[(chain+n)*sector:], continuesAt(chain+n+1, sector))
	}
	if err := walked(t, i); err == nil || !strings.Contains(err.Error(), "the data about the files") {
		t.Errorf("shared areas: %v", err)
	}
}

// TestOverlappingDirectories has directories that begin in one another, so that each is read from most of the image.
func TestOverlappingDirectories(t *testing.T) {
	t.Parallel()
	const sectors, first = 8192, 2000
	var dirs [][]byte
	for n := range 4000 {
		dirs = append(dirs, record("D", first+n, (sectors-first-n)*sector, true, nil))
	}
	i := newHostileImage(sectors, pack(dirs...))
	if err := walked(t, i); err == nil || !strings.Contains(err.Error(), "directories of the image have more") {
		t.Errorf("overlapping directories: %v", err)
	}
}

// TestDirectoryLoop has a directory that is in itself.
func TestDirectoryLoop(t *testing.T) {
	t.Parallel()
	i := newHostileImage(64, pack(record("LOOP", 18, sector, true, nil)))
	if err := walked(t, i); err == nil || !strings.Contains(err.Error(), "loop") {
		t.Errorf("a loop: %v", err)
	}
	image, err := iso.Open(bytes.NewReader(i), int64(len(i)))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := image.Open(strings.Repeat("LOOP/", 1000) + "x"); err == nil {
		n, _ := io.Copy(io.Discard, f)
		t.Errorf("a file of %d bytes was opened in a loop", n)
	}
}
