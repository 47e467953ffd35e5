package begin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/installer/precheck"
)

// Limits on an ELF file.
const (
	maxProgram = 256 << 20 // bytes of a dynamic program
	maxHeaders = 1 << 10   // program headers
	maxGap     = 1 << 16   // bytes between the header of the file and these
	maxSection = 4 << 20   // bytes of a section that is read
)

// readLinkage reads the requirements of a program. Of a static program only the headers are read; a dynamic one is
// stored in a temporary file meanwhile, because its sections are at its end. The error is that of reading; a program
// that cannot be understood has a Problem.
func readLinkage(program io.Reader) (precheck.Linkage, error) {
	in, head := &source{Reader: program}, &bytes.Buffer{}
	l, dynamic, err := readHeaders(io.TeeReader(in, head))
	if err != nil {
		l.Problem = err.Error()
	}
	if err != nil || !dynamic {
		return l, in.err
	}
	f, err := os.CreateTemp("", "kkbundle-program-*")
	if err != nil {
		return l, err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }() // temporary
	n, err := io.Copy(f, io.LimitReader(io.MultiReader(head, in), maxProgram+1))
	if err != nil {
		return l, err
	}
	if err = readDynamic(f, &l); n > maxProgram {
		err = fmt.Errorf("it is larger than %d bytes", maxProgram)
	}
	if err != nil {
		l.Problem = err.Error()
	}
	return l, nil
}

// A source remembers the error of a stream.
type source struct {
	io.Reader
	err error
}

// Read reads from the stream.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// readHeaders reads the architecture of a program, and reports whether it has a dynamic loader. A file that is no ELF
// file requires nothing that is known, and a program of 32 bits nothing but its architecture.
func readHeaders(r io.Reader) (l precheck.Linkage, dynamic bool, err error) {
	start := make([]byte, elf.EI_NIDENT+4) // with type and machine, which are the same for 32 and 64 bits
	if _, err := io.ReadFull(r, start); err != nil || !bytes.HasPrefix(start, []byte(elf.ELFMAG)) {
		return l, false, ignoreEnd(err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(start[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	l.Arch = archOf(elf.Machine(order.Uint16(start[elf.EI_NIDENT+2:])))
	if elf.Class(start[elf.EI_CLASS]) != elf.ELFCLASS64 {
		return l, false, nil
	}
	header := elf.Header64{}
	rest := make([]byte, binary.Size(header)-len(start))
	if _, err := io.ReadFull(r, rest); err != nil {
		return l, false, errTruncated
	}
	if _, err := binary.Decode(append(start, rest...), order, &header); err != nil {
		return l, false, err
	}
	dynamic, err = hasLoader(r, order, header)
	return l, dynamic, err
}

// hasLoader reads the program headers, which follow the file's header.
func hasLoader(r io.Reader, order binary.ByteOrder, header elf.Header64) (bool, error) {
	gap := int64(header.Phoff) - int64(binary.Size(header))
	if header.Phnum == 0 || header.Phnum > maxHeaders || gap < 0 || gap > maxGap {
		return false, errors.New("the ELF file has no program headers near its start")
	}
	if _, err := io.CopyN(io.Discard, r, gap); err != nil {
		return false, errTruncated
	}
	for range header.Phnum {
		var segment elf.Prog64
		if err := binary.Read(r, order, &segment); err != nil {
			return false, errTruncated
		}
		if elf.ProgType(segment.Type) == elf.PT_INTERP {
			return true, nil
		}
	}
	return false, nil
}

var errTruncated = errors.New("the ELF file ends within its headers")

// ignoreEnd drops the error of a file that is shorter than an ELF file.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// readDynamic reads the dynamic loader and the needed version of glibc.
func readDynamic(r io.ReaderAt, l *precheck.Linkage) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return err
	}
	for _, segment := range f.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		path, err := io.ReadAll(io.LimitReader(segment.Open(), 1<<12))
		if err != nil {
			return err
		}
		l.Loader = strings.TrimRight(string(path), "\x00")
	}
	for _, s := range f.Sections {
		named := s.Type == elf.SHT_GNU_VERNEED || s.Type == elf.SHT_GNU_VERSYM || s.Type == elf.SHT_GNU_VERDEF ||
			s.Type == elf.SHT_DYNSYM || s.Type == elf.SHT_STRTAB && s.Name == ".dynstr"
		if named && s.Size > maxSection {
			return fmt.Errorf("section %s of %d bytes is larger than the limit of %d", s.Name, s.Size, maxSection)
		}
	}
	if f.SectionByType(elf.SHT_GNU_VERNEED) == nil {
		return nil
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return err
	}
	l.GLIBC = neededGLIBC(needs)
	return nil
}

// neededGLIBC returns the newest version of glibc among the versions of symbols; "" if there is none.
func neededGLIBC(needs []elf.DynamicVersionNeed) string {
	var newest *semver.Version
	for _, library := range needs {
		for _, symbol := range library.Needs {
			text, ok := strings.CutPrefix(symbol.Dep, "GLIBC_")
			v, err := semver.NewVersion(text)
			if ok && err == nil && symbol.Flags&elf.VER_FLG_WEAK == 0 && (newest == nil || v.GreaterThan(newest)) {
				newest = v
			}
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Original()
}

// archOf returns a machine in Go's spelling.
func archOf(m elf.Machine) string {
	switch m {
	case elf.EM_X86_64:
		return "amd64"
	case elf.EM_AARCH64:
		return "arm64"
	default:
		return strings.ToLower(strings.TrimPrefix(m.String(), "EM_"))
	}
}
