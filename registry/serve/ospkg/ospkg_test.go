package ospkg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

const control = "Package: demo\nVersion: 1:2.0~rc1-3\nArchitecture: amd64\nDepends: libc6 (>= 2.36)\nFilename: ../elsewhere\nSHA256: 00\n 11\nDescription: short\n long\n .\n more\n"

// makeDeb makes a .deb whose control member is packed as its name says.
func makeDeb(t testing.TB, member, control string) []byte {
	t.Helper()
	var inner, packed, ar bytes.Buffer
	w := tar.NewWriter(&inner)
	for name, content := range map[string]string{"./md5sums": "00", "./control": control} {
		err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg})
		if err == nil {
			_, err = w.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	pack(t, &packed, member, inner.Bytes())
	ar.WriteString("!<arch>\n")
	for _, m := range []struct{ name, content string }{{"debian-binary", "2.0\n"}, {member, packed.String()}} {
		fmt.Fprintf(&ar, "%-16s%-12d%-6d%-6d%-8o%-10d`\n%s", m.name, 0, 0, 0, 0o100644, len(m.content), m.content)
		if len(m.content)%2 == 1 {
			ar.WriteByte('\n')
		}
	}
	return ar.Bytes()
}

func pack(t testing.TB, to *bytes.Buffer, member string, content []byte) {
	t.Helper()
	var z interface {
		Write([]byte) (int, error)
		Close() error
	}
	var err error
	switch {
	case strings.HasSuffix(member, ".gz"):
		z = gzip.NewWriter(to)
	case strings.HasSuffix(member, ".xz"):
		z, err = xz.NewWriter(to)
	case strings.HasSuffix(member, ".zst"):
		z, err = zstd.NewWriter(to)
	default:
		to.Write(content)
		return
	}
	if err == nil {
		_, err = z.Write(content)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A field is a tag of a header that makeRPM makes: a string, []string, []uint16, []uint32 or []uint64.
type field struct {
	tag   uint32
	value any
}

func makeHeader(t testing.TB, fields []field) []byte {
	t.Helper()
	var index, store bytes.Buffer
	put := func(tag, kind, count uint32, v any) {
		for _, n := range []uint32{tag, kind, uint32(store.Len()), count} {
			index.Write(binary.BigEndian.AppendUint32(nil, n))
		}
		switch v := v.(type) {
		case []string:
			for _, s := range v {
				store.WriteString(s + "\x00")
			}
		default:
			if err := binary.Write(&store, binary.BigEndian, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, f := range fields {
		switch v := f.value.(type) {
		case string:
			put(f.tag, typeString, 1, []string{v})
		case []string:
			put(f.tag, typeArray, uint32(len(v)), v)
		case []uint16:
			put(f.tag, typeInt16, uint32(len(v)), v)
		case []uint32:
			put(f.tag, typeInt32, uint32(len(v)), v)
		case []uint64:
			put(f.tag, typeInt64, uint32(len(v)), v)
		}
	}
	h := []byte("\x8e\xad\xe8\x01\x00\x00\x00\x00")
	h = binary.BigEndian.AppendUint32(h, uint32(index.Len()/rpmIntro))
	h = binary.BigEndian.AppendUint32(h, uint32(store.Len()))
	return append(append(h, index.Bytes()...), store.Bytes()...)
}

func makeRPM(t testing.TB, fields ...field) []byte {
	t.Helper()
	b := append([]byte("\xed\xab\xee\xdb"), make([]byte, rpmLead-4)...)
	b = append(b, makeHeader(t, []field{{tagSigPayloadSize, []uint32{77}}})...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return append(append(b, makeHeader(t, fields)...), "payload"...)
}

func demoRPM() []field {
	return []field{
		{tagName, "demo"},
		{tagVersion, "2.0"},
		{tagRelease, "1.el9"},
		{tagEpoch, []uint32{3}},
		{tagArch, "x86_64"},
		{tagSourceRPM, "demo-2.0-1.el9.src.rpm"},
		{tagSize, []uint32{9}},
		{tagLongSize, []uint64{1 << 40}},
		{tagRequireName, []string{"rpmlib(CompressedFileNames)", "libc.so.6", "libc.so.6", "bash"}},
		{tagRequireFlags, []uint32{0x100000a, 0, 0, 0x408}},
		{tagRequireVersion, []string{"3.0.4-1", "", "", "1:5-2"}},
		{tagProvideName, []string{"demo"}},
		{tagProvideFlags, []uint32{0x8}},
		{tagProvideVersion, []string{"3:2.0-1.el9"}},
		{tagBaseNames, []string{"demo", "demo.d", "log"}},
		{tagDirNames, []string{"/usr/bin/", "/etc/", "/var/"}},
		{tagDirIndexes, []uint32{0, 1, 2}},
		{tagFileModes, []uint16{0o100755, 0o040755, 0o100644}},
		{tagFileFlags, []uint32{0, 0, fileGhost}},
		{tagChangeTime, []uint32{20, 10}},
		{tagChangeName, []string{"B", "A"}},
		{tagChangeText, []string{"- second", "- first"}},
	}
}

func TestReadDeb(t *testing.T) {
	t.Parallel()
	want := &Deb{
		Package: "demo", Version: "1:2.0~rc1-3", Architecture: "amd64",
		Control: []byte("Package: demo\nVersion: 1:2.0~rc1-3\nArchitecture: amd64\nDepends: libc6 (>= 2.36)\nDescription: short\n long\n .\n more\n"),
	}
	for _, member := range []string{"control.tar", "control.tar.gz", "control.tar.xz", "control.tar.zst"} {
		data := makeDeb(t, member, control)
		got, err := ReadDeb(bytes.NewReader(data), int64(len(data)))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", member, err, diff)
		}
	}
}

func TestReadDebRefuses(t *testing.T) {
	t.Parallel()
	good := makeDeb(t, "control.tar", control)
	for name, data := range map[string][]byte{
		"empty":           nil,
		"another archive": []byte("PK\x03\x04 something else that is long enough"),
		"cut":             good[:200],
		"size":            bytes.Replace(good, []byte("4         `\n2.0"), []byte("9999999999`\n2.0"), 1),
		"minus":           bytes.Replace(good, []byte("4         `\n2.0"), []byte("-4        `\n2.0"), 1),
		"bzip2":           makeDeb(t, "control.tar.bz2", control),
		"not compressed": bytes.Replace(makeDeb(t, "control.tar.x1", control), []byte("control.tar.x1"),
			[]byte("control.tar.xz"), 1),
		"no name":        makeDeb(t, "control.tar", "Version: 1\nArchitecture: all\n"),
		"path as name":   makeDeb(t, "control.tar", "Package: ../x\nVersion: 1\nArchitecture: all\n"),
		"two paragraphs": makeDeb(t, "control.tar", control+"\nPackage: other\n"),
		"two names":      makeDeb(t, "control.tar", control+"package: other\n"),
		"no field":       makeDeb(t, "control.tar", control+"something\n"),
		"control bytes":  makeDeb(t, "control.tar", control+"Homepage: \x1b[2J\n"),
		"middle":         makeDeb(t, "control.tar", " x\n"+control),
		"long":           makeDeb(t, "control.tar", control+"X: "+strings.Repeat("x", maxControl)+"\n"),
	} {
		if d, err := ReadDeb(bytes.NewReader(data), int64(len(data))); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	failing := errors.New("the disk fails")
	if _, err := ReadDeb(failingAt{failing}, 1000); !errors.Is(err, failing) || errors.Is(err, ErrInvalid) {
		t.Errorf("a disk that fails: %v", err)
	}
	if _, err := ReadRPM(failingAt{failing}, 1000); !errors.Is(err, failing) || errors.Is(err, ErrInvalid) {
		t.Errorf("a disk that fails: %v", err)
	}
}

type failingAt struct{ err error }

func (f failingAt) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func TestReadRPM(t *testing.T) {
	t.Parallel()
	data := makeRPM(t, demoRPM()...)
	got, err := ReadRPM(bytes.NewReader(data), int64(len(data)))
	want := &RPM{
		Name: "demo", Version: "2.0", Release: "1.el9", Epoch: "3", Arch: "x86_64", SourceRPM: "demo-2.0-1.el9.src.rpm",
		Installed: 1 << 40, Archive: 77,
		HeaderStart: 136, HeaderEnd: int64(len(data) - len("payload")),
		Requires: []Relation{{Name: "libc.so.6"}, {
			Name: "bash", Op: "EQ", Epoch: "1", Version: "5", Release: "2",
			Pre: true,
		}},
		Provides: []Relation{{Name: "demo", Op: "EQ", Epoch: "3", Version: "2.0", Release: "1.el9"}},
		Files: []File{
			{Path: "/usr/bin/demo"},
			{Path: "/etc/demo.d", Type: "dir"},
			{Path: "/var/log", Type: "ghost"},
		},
		Changes: []Change{{"B", "- second", 20}, {"A", "- first", 10}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if source := append(demoRPM(), field{tagSourceRPM, ""}); source != nil {
		data := makeRPM(t, source...)
		if p, err := ReadRPM(bytes.NewReader(data), int64(len(data))); err != nil || p.Arch != "src" {
			t.Errorf("a source package: %+v, %v", p, err)
		}
	}
}

func TestReadRPMRefuses(t *testing.T) {
	t.Parallel()
	good := makeRPM(t, demoRPM()...)
	end := len(good) - len("payload")
	set := func(at int, b ...byte) []byte { c := bytes.Clone(good); copy(c[at:], b); return c }
	long := make([]string, 2000)
	for name, data := range map[string][]byte{
		"empty":          nil,
		"no header":      good[:130],
		"cut":            good[:end-1],
		"magic":          set(136, 0),
		"too many tags":  set(136+8, 0, 0, 0xff),
		"too many bytes": set(136+12, 0x7f),
		"negative":       set(136+12, 0xff, 0xff, 0xff, 0xff),
		"outside":        set(136+16+8, 0x00, 0xff),
		"count":          set(136+16+12, 0xff),
		"no name":        makeRPM(t, demoRPM()[1:]...),
		"path as name":   makeRPM(t, append(demoRPM(), field{tagName, "../x"})...),
		"long directories": makeRPM(t, append(demoRPM(), field{tagBaseNames, long},
			field{tagDirNames, []string{strings.Repeat("x", maxHeader/1000)}})...),
	} {
		if p, err := ReadRPM(bytes.NewReader(data), int64(len(data))); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	shared := bytes.Clone(good)
	for i := range len(demoRPM()) { // every tag is all strings of the whole store
		e := shared[136+16+i*rpmIntro:]
		binary.BigEndian.PutUint32(e[4:], typeArray)
		binary.BigEndian.PutUint32(e[8:], 0)
		binary.BigEndian.PutUint32(e[12:], maxStrings)
	}
	if p, err := ReadRPM(bytes.NewReader(shared), int64(len(shared))); !errors.Is(err, ErrInvalid) {
		t.Errorf("tags that share their bytes: %+v, %v", p, err)
	}
}

// FuzzDeb holds that what goes into a list of packages is one paragraph of clean lines, and that no input takes the
// reader down.
func FuzzDeb(f *testing.F) {
	for _, member := range []string{"control.tar", "control.tar.gz", "control.tar.xz", "control.tar.zst"} {
		f.Add(makeDeb(f, member, control))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ReadDeb(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("no disk failed: %v", err)
			}
			return
		}
		checkControl(t, d)
	})
}

// FuzzControl is FuzzDeb without the archives around.
func FuzzControl(f *testing.F) {
	f.Add([]byte(control))
	f.Add([]byte("Package: a\r\nVersion: 1\r\nArchitecture: all\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if d, err := parseControl(text); err == nil {
			checkControl(t, d)
		}
	})
}

func checkControl(t *testing.T, d *Deb) {
	for i, line := range strings.SplitAfter(string(d.Control), "\n") {
		if line == "" && i > 0 {
			continue
		}
		name, _, ok := strings.Cut(line, ":")
		if strings.TrimSpace(line) == "" || !strings.HasSuffix(line, "\n") || strings.ContainsAny(line, "\r\x00") ||
			line[0] != ' ' && line[0] != '\t' && (!ok || ofIndex(name)) {
			t.Errorf("line %q of %q", line, d.Control)
		}
	}
	if !strings.Contains("\n"+strings.ToLower(string(d.Control)), "\npackage:") {
		t.Errorf("%q has no name", d.Control)
	}
}

// FuzzRPM holds that places lie within the file, and that what is read is not more than there is.
func FuzzRPM(f *testing.F) {
	f.Add(makeRPM(f, demoRPM()...))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadRPM(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("no disk failed: %v", err)
			}
			return
		}
		if p.HeaderStart < rpmLead || p.HeaderEnd > int64(len(data)) || p.HeaderStart >= p.HeaderEnd ||
			len(p.Files)+len(p.Requires)+len(p.Provides) > len(data) || len(p.Changes) > maxChanges {
			t.Errorf("%+v of %d bytes", p, len(data))
		}
	})
}
