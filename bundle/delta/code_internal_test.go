package delta

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"testing"
)

// machines are all architectures that have a conversion.
func machines() []machine { return []machine{machineAMD64, machineARM64} }

func FuzzCodeIsConvertedBack(f *testing.F) {
	f.Add([]byte{0xe8, 1, 2, 3, 0, 0xe8, 0xe8, 1, 2, 0xff, 0x48, 0x8d, 5, 9, 9, 9, 0, 0xe9, 0xff})
	f.Add(bytes.Repeat([]byte{0xe8, 0xe8, 0, 0x12, 0xe9, 0x48, 0xe8, 0xff}, 9))
	f.Add([]byte{0, 0, 0, 0x94, 1, 0, 0, 0xb0, 0xff, 0xff, 0xff, 0x97, 0xe0, 0xff, 0xff, 0xf0})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range machines() {
			b := bytes.Clone(data)
			c := code{span{0, int64(len(b))}, m}
			c.convert(b, toTarget)
			c.convert(b, toDistance)
			if !bytes.Equal(b, data) {
				t.Fatalf("machine %d: %x becomes %x", m, data, b)
			}
		}
	})
}

func TestCallsOfTheSameFunctionBecomeTheSameBytes(t *testing.T) {
	amd64 := make([]byte, 64)
	for _, at := range []uint32{0, 20, 40} {
		amd64[at] = 0xe8
		binary.LittleEndian.PutUint32(amd64[at+1:], 0x1000-at)
	}
	code{span{0, 64}, machineAMD64}.convert(amd64, toTarget)
	if !bytes.Equal(amd64[:5], amd64[20:25]) || !bytes.Equal(amd64[:5], amd64[40:45]) {
		t.Errorf("amd64: %x", amd64)
	}
	arm64 := make([]byte, 64)
	for _, at := range []uint32{0, 20, 40} {
		binary.LittleEndian.PutUint32(arm64[at:], 0x94000000|(0x1000-at)/4)
	}
	code{span{0, 64}, machineARM64}.convert(arm64, toTarget)
	if !bytes.Equal(arm64[:4], arm64[20:24]) || !bytes.Equal(arm64[:4], arm64[40:44]) {
		t.Errorf("arm64: %x", arm64)
	}
}

// elf returns a program of calls of a few functions.
func elf(m machine, size int) []byte {
	b := make([]byte, size)
	copy(b, "\x7fELF\x02\x01")
	number := map[machine]uint16{machineAMD64: 62, machineARM64: 183}
	binary.LittleEndian.PutUint16(b[18:], number[m])
	binary.LittleEndian.PutUint64(b[32:], 64) // one entry of 56 bytes, at 64
	binary.LittleEndian.PutUint16(b[54:], 56)
	binary.LittleEndian.PutUint16(b[56:], 1)
	copy(b[64:], []byte{1, 0, 0, 0, 5, 0, 0, 0})
	binary.LittleEndian.PutUint64(b[72:], 120)
	binary.LittleEndian.PutUint64(b[96:], 1<<40) // cut at the end of the file
	for i, at := uint32(0), uint32(120); int(at)+12 <= size; i, at = i+1, at+12 {
		target := 0x1000 + (i*2654435761>>29)*0x100
		if m == machineARM64 {
			binary.LittleEndian.PutUint32(b[at:], 0x94000000|(target-at)/4&0x03ffffff)
			continue
		}
		b[at] = 0xe8
		binary.LittleEndian.PutUint32(b[at+1:], target-at)
	}
	return b
}

// TestCodeOfPartsOfPrograms reads entries of several parts, of which one begins in the middle of its program.
func TestCodeOfPartsOfPrograms(t *testing.T) {
	for _, m := range machines() {
		e, s := entryOf(t, append([]byte("no program"), elf(m, 40_000)...))
		text := &piece{size: 10, in: s}
		program := &piece{size: 40_000, in: s, at: 10}
		e.parts = []part{
			{text, span{0, 10}},
			{program, span{0, 30_000}},
			{program, span{30_000, 10_000}},
			{text, span{2, 5}},
		}
		found, err := e.code()
		want := []code{{span{130, 29_880}, m}, {span{30_010, 10_000}, m}}
		if err != nil || !slices.Equal(found, want) {
			t.Fatalf("machine %d: %v, %v", m, found, err)
		}
		packed, err := e.pack(t.Context(), "")
		if err != nil || kind(packed[0]) != kindCode {
			t.Fatalf("machine %d: kind %d, %v", m, packed[0], err)
		}
		content, err := load(e.parts)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := packZstd(content, nil)
		if err != nil || len(packed)*2 > len(plain) {
			t.Errorf("machine %d: %d bytes; %d without conversion; %v", m, len(packed), len(plain), err)
		}
	}
}

// entryOf returns an entry of one piece.
func entryOf(t *testing.T, content []byte) (entry, *spool) {
	t.Helper()
	s, err := newSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Write(content); err != nil {
		t.Fatal(err)
	}
	p := &piece{size: s.size, in: s, address: -1}
	return entry{parts: []part{{p, span{0, p.size}}}}, s
}

// TestProgramsArePackedSmaller packs the beginning of this test's own program.
func TestProgramsArePackedSmaller(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	program = program[:min(len(program), 2<<20)]
	plain, err := packZstd(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := entryOf(t, program)
	packed, err := e.pack(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of %d; without conversion %d", len(packed), len(program), len(plain))
	if len(packed)*100 > len(plain)*98 {
		t.Errorf("packed: %d bytes; without conversion %d", len(packed), len(plain))
	}
}
