package transfer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A source is content by digest, as a bundle has it.
type source struct {
	blobs  map[string][]byte
	opened []string // "digest prefix@offset"
	pulled []Pull
}

func (s *source) from() Source {
	return Source{s.open, func(p Pull) { s.pulled = append(s.pulled, p) }}
}

func (s *source) add(data []byte) (digest string, size int64) {
	sum := sha256.Sum256(data)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	if s.blobs == nil {
		s.blobs = map[string][]byte{}
	}
	s.blobs[digest] = data
	return digest, int64(len(data))
}

func (s *source) file(name string, data []byte, path string, mode fs.FileMode) PlannedFile {
	digest, size := s.add(data)
	return PlannedFile{Name: name, Digest: digest, Size: size, Path: path, Mode: mode}
}

func (s *source) open(_ context.Context, digest string, offset int64) (io.ReadCloser, error) {
	s.opened = append(s.opened, fmt.Sprintf("%s@%d", digest[7:11], offset))
	data, ok := s.blobs[digest]
	if !ok {
		return nil, errors.New("not in the bundle")
	}
	return io.NopCloser(bytes.NewReader(data[offset:])), nil
}

// limitedWriter breaks a connection off after some bytes.
type limitedWriter struct {
	w    io.WriteCloser
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > l.left {
		n, _ := l.w.Write(p[:l.left])
		l.left = 0
		_ = l.w.Close()
		return n, errors.New("the connection is gone")
	}
	l.left -= len(p)
	return l.w.Write(p)
}

// converse runs both ends; most is how many bytes get through to the host, all if negative.
func converse(t *testing.T, root string, plan Plan, s *source, most int) (Summary, error, error) {
	t.Helper()
	return converseWith(t, root, func(ctx context.Context, in io.Writer, out io.Reader) (Summary, error) {
		return Send(ctx, in, out, plan, s.from())
	}, most)
}

func converseWith(t *testing.T, root string,
	send func(ctx context.Context, in io.Writer, out io.Reader) (Summary, error), most int,
) (Summary, error, error) {
	t.Helper()
	toHost, in := io.Pipe()
	out, fromHost := io.Pipe()
	received := make(chan error, 1)
	go func() {
		err := Receive(t.Context(), root, toHost, fromHost)
		_ = toHost.CloseWithError(io.ErrClosedPipe)
		_ = fromHost.Close()
		received <- err
	}()
	var w io.Writer = in
	if most >= 0 {
		w = &limitedWriter{w: in, left: most}
	}
	summary, err := send(t.Context(), w, out)
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	return summary, err, <-received
}

func mustConverse(t *testing.T, root string, plan Plan, s *source) Summary {
	t.Helper()
	summary, err, hostErr := converse(t, root, plan, s, -1)
	if err != nil || hostErr != nil {
		t.Fatalf("send: %v; receive: %v", err, hostErr)
	}
	return summary
}

func wantFile(t *testing.T, root, path string, data []byte, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(root, path))
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%s: %d bytes, %v, want %d", path, len(got), err, len(data))
	}
	if info, _ := os.Lstat(filepath.Join(root, path)); info.Mode() != mode {
		t.Errorf("%s: mode %v, want %v", path, info.Mode(), mode)
	}
}

// noLitter checks that nothing but finished files is anywhere.
func noLitter(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.Contains(path, "/parts/") || strings.HasSuffix(path, ".kkbundle") ||
			strings.HasSuffix(path, ".new")) {
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func random(n int, seed uint64) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(data)
	return data
}

type entry struct {
	name, link string
	data       []byte
	kind       byte
}

func archive(t testing.TB, zipped bool, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.Writer = &b
	var z *gzip.Writer
	if zipped {
		z = gzip.NewWriter(&b)
		w = z
	}
	tw := tar.NewWriter(w)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: 0o777, Size: int64(len(e.data))}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if z != nil {
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestReceive(t *testing.T) {
	t.Parallel()
	root, s := t.TempDir(), &source{}
	kubelet, bridge, loopback := random(3<<20, 1), random(300000, 2), random(200000, 3)
	tgz := archive(t, true, entry{name: "./", kind: tar.TypeDir}, entry{name: "./bridge", data: bridge},
		entry{name: "./unwanted", data: []byte("x")}, entry{name: "v1/deep/loopback", data: []byte("x")},
		entry{name: "v1/loopback", data: loopback})
	cni := PlannedFile{Name: "cni", Unpack: []Member{
		{Name: "*/loopback", Path: "/opt/cni/bin/loopback", Mode: 0o755},
		{Name: "./bridge", Path: "/opt/cni/bin/bridge", Mode: 0o755},
	}}
	cni.Digest, cni.Size = s.add(tgz)
	plan := Plan{Files: []PlannedFile{
		s.file("kubelet", kubelet, "/usr/local/bin/kubelet", 0o755),
		s.file("kubelet again", kubelet, "/opt/kubelet", 0o700),
		cni,
		s.file("empty", nil, "/etc/kkbundle/empty", 0o644),
	}}
	check := func() {
		t.Helper()
		wantFile(t, root, "/usr/local/bin/kubelet", kubelet, 0o755)
		wantFile(t, root, "/opt/kubelet", kubelet, 0o700)
		wantFile(t, root, "/opt/cni/bin/bridge", bridge, 0o755)
		wantFile(t, root, "/opt/cni/bin/loopback", loopback, 0o755)
		wantFile(t, root, "/etc/kkbundle/empty", nil, 0o644)
		if _, err := os.Stat(root + "/opt/cni/bin/unwanted"); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a member that nobody wants was unpacked")
		}
		noLitter(t, root)
	}
	got := mustConverse(t, root, plan, s)
	want := Summary{
		Changed: []string{
			"/usr/local/bin/kubelet", "/opt/kubelet", "/opt/cni/bin/loopback", "/opt/cni/bin/bridge",
			"/etc/kkbundle/empty",
		},
		Sent: int64(len(kubelet) + len(tgz)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("first run (-want +got):\n%s", diff)
	}
	check()
	if info, err := os.Stat(root + "/var/lib/kkbundle"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v", info.Mode(), err)
	}

	s.opened = nil
	if got := mustConverse(t, root, plan, s); len(got.Changed) != 0 || got.Sent != 0 || len(s.opened) != 0 {
		t.Errorf("second run: %+v, opened %v", got, s.opened)
	}

	for _, c := range []struct {
		name   string
		damage func() error
		want   Summary
	}{
		{
			"deleted member", func() error { return os.Remove(root + "/opt/cni/bin/bridge") },
			Summary{[]string{"/opt/cni/bin/bridge"}, int64(len(tgz))},
		},
		{
			"changed member", func() error { return os.WriteFile(root+"/opt/cni/bin/loopback", loopback[1:], 0o755) },
			Summary{[]string{"/opt/cni/bin/loopback"}, int64(len(tgz))},
		},
		{
			"changed bytes", func() error { return os.WriteFile(root+"/usr/local/bin/kubelet", random(3<<20, 9), 0o755) },
			Summary{[]string{"/usr/local/bin/kubelet"}, int64(len(kubelet))},
		},
		{
			"mode", func() error { return os.Chmod(root+"/opt/kubelet", 0o755) },
			Summary{[]string{"/opt/kubelet"}, 0},
		},
		{
			"set-user-id", func() error { return os.Chmod(root+"/opt/kubelet", 0o700|fs.ModeSetuid) },
			Summary{[]string{"/opt/kubelet"}, 0},
		},
		{"link", func() error {
			return errors.Join(os.Remove(root+"/opt/kubelet"),
				os.Symlink("../usr/local/bin/kubelet", root+"/opt/kubelet"))
		}, Summary{[]string{"/opt/kubelet"}, int64(len(kubelet))}},
		{
			"receipts", func() error { return os.WriteFile(root+"/"+receiveDir+"/"+receiptsName, []byte("{"), 0o600) },
			Summary{nil, int64(len(tgz))},
		},
	} {
		if err := c.damage(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, mustConverse(t, root, plan, s)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		check()
	}
}

// TestReceiveInterrupted breaks off at many places; the next run must end with the same files, and not send again what
// has arrived.
func TestReceiveInterrupted(t *testing.T) {
	t.Parallel()
	s := &source{}
	a, b := random(700000, 4), random(500000, 5)
	tgz := archive(t, false, entry{name: "bin/b", data: b})
	plan := Plan{Files: []PlannedFile{
		s.file("a", a, "/usr/local/bin/a", 0o755),
		{Name: "b", Unpack: []Member{{Name: "bin/b", Path: "/opt/b", Mode: 0o755}}},
	}}
	plan.Files[1].Digest, plan.Files[1].Size = s.add(tgz)
	total := int64(len(a) + len(tgz))
	for most := 0; most < int(total)+2000; most += 70001 {
		root := t.TempDir()
		first, err, hostErr := converse(t, root, plan, s, most)
		if err == nil || hostErr == nil {
			t.Fatalf("%d bytes: send %v, receive %v", most, err, hostErr)
		}
		second := mustConverse(t, root, plan, s)
		wantFile(t, root, "/usr/local/bin/a", a, 0o755)
		wantFile(t, root, "/opt/b", b, 0o755)
		noLitter(t, root)
		// What was under way in a frame is lost, at most.
		if again := first.Sent + second.Sent - total; again > 2*wire.Chunk || second.Sent > total {
			t.Errorf("%d bytes: %d and %d of %d were sent", most, first.Sent, second.Sent, total)
		}
	}
}

// Content that is sent ahead changes no place, is sent once, and is there for the Send that places it. To look places
// nothing either, even if all content is there.
func TestKeep(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var s source
	data := []byte("new kubelet")
	plan := Plan{Files: []PlannedFile{s.file("kubelet", data, "/usr/local/bin/kubelet", 0o755)}}
	at := filepath.Join(root, "usr/local/bin")
	if err := errors.Join(os.MkdirAll(at, 0o755),
		os.WriteFile(filepath.Join(at, "kubelet"), []byte("old"), 0o755)); err != nil {
		t.Fatal(err)
	}
	look := func() (list []Lack, err error) {
		var in, out bytes.Buffer
		if err := wire.WriteMessage(&in, offer{ProtocolVersion, toLook, plan}); err != nil {
			return nil, err
		}
		if err := Receive(t.Context(), root, &in, &out); err != nil {
			return nil, err
		}
		return Look(io.Discard, &out, plan)
	}
	digest, size := plan.Files[0].Digest, plan.Files[0].Size
	if got, err := look(); err != nil || !cmp.Equal(got, []Lack{{digest, size}}) {
		t.Errorf("before: %v, %v", got, err)
	}
	keep := func(ctx context.Context, in io.Writer, out io.Reader) (Summary, error) {
		return Keep(ctx, in, out, plan, s.from())
	}
	for _, want := range []int64{size, 0} {
		summary, err, hostErr := converseWith(t, root, keep, -1)
		if err != nil || hostErr != nil || summary.Sent != want || len(summary.Changed) > 0 {
			t.Errorf("got %+v, %v, %v, want %d bytes", summary, err, hostErr, want)
		}
	}
	if got, err := look(); err != nil || !cmp.Equal(got, []Lack{{digest, 0}}) {
		t.Errorf("kept: %v, %v", got, err)
	}
	part, old := filepath.Join(root, partsDir, partName(digest)), time.Now().Add(-keepParts/2-time.Hour)
	if err := os.Chtimes(part, old, old); err != nil {
		t.Fatal(err)
	}
	if got, err := look(); err != nil || !cmp.Equal(got, []Lack{{digest, size}}) {
		t.Errorf("half of its time is over: %v, %v", got, err)
	}
	if summary, err, hostErr := converseWith(t, root, keep, -1); err != nil || hostErr != nil || summary.Sent != 0 {
		t.Errorf("renewed: %+v, %v, %v", summary, err, hostErr)
	}
	if got, err := look(); err != nil || !cmp.Equal(got, []Lack{{digest, 0}}) {
		t.Errorf("after it was renewed: %v, %v", got, err)
	}
	wantFile(t, root, "usr/local/bin/kubelet", []byte("old"), 0o755)
	if summary := mustConverse(t, root, plan, &s); summary.Sent != 0 {
		t.Errorf("%d bytes were sent again", summary.Sent)
	}
	wantFile(t, root, "usr/local/bin/kubelet", data, 0o755)
	if got, err := look(); err != nil || len(got) > 0 {
		t.Errorf("in place: %v, %v", got, err)
	}
	noLitter(t, root)
}

func TestReceiveDamagedPart(t *testing.T) {
	t.Parallel()
	root, s := t.TempDir(), &source{}
	data := random(900000, 6)
	plan := Plan{Files: []PlannedFile{s.file("a", data, "/opt/a", 0o755)}}
	part := filepath.Join(root, partsDir, partName(plan.Files[0].Digest))
	for _, kept := range [][]byte{bytes.Repeat([]byte{0}, 400000), make([]byte, len(data)), make([]byte, len(data)+1)} {
		if err := os.MkdirAll(filepath.Dir(part), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(part, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		mustConverse(t, root, plan, s)
		wantFile(t, root, "/opt/a", data, 0o755)
		noLitter(t, root)
		if err := os.Remove(root + "/opt/a"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReceiveRefuses(t *testing.T) {
	t.Parallel()
	s := &source{}
	data := random(100000, 7)
	good := s.file("good", data, "/opt/good", 0o755)
	other := s.file("other", random(100000, 8), "/opt/other", 0o755)
	packed := func(entries ...entry) PlannedFile {
		f := PlannedFile{Name: "packed", Unpack: []Member{{Name: "bin/x", Path: "/opt/x", Mode: 0o755}}}
		f.Digest, f.Size = s.add(archive(t, true, entries...))
		return f
	}
	change := func(f PlannedFile, how func(*PlannedFile)) PlannedFile {
		how(&f)
		return f
	}
	absent := change(good, func(f *PlannedFile) { f.Digest = "sha256:" + strings.Repeat("0", 64) })
	lying := &source{blobs: map[string][]byte{good.Digest: s.blobs[other.Digest]}}
	short := &source{blobs: map[string][]byte{good.Digest: data[1:]}}
	long := &source{blobs: map[string][]byte{good.Digest: append([]byte{1}, data...)}}
	damaged := PlannedFile{Name: "damaged", Unpack: []Member{{Name: "bin/x", Path: "/opt/x", Mode: 0o755}}}
	damaged.Digest, damaged.Size = s.add(archive(t, true, entry{name: "bin/x", data: data})[:50000])
	for _, c := range []struct {
		name string
		file PlannedFile
		from *source
		want string
	}{
		{"outside", change(good, func(f *PlannedFile) { f.Path = "/root/x" }), s, "is not below /usr/local"},
		{"escape", change(good, func(f *PlannedFile) { f.Path = "/opt/../root/x" }), s, "not an absolute path"},
		{"relative", change(good, func(f *PlannedFile) { f.Path = "opt/x" }), s, "not an absolute path"},
		{"root itself", change(good, func(f *PlannedFile) { f.Path = "/opt" }), s, "is not below"},
		{
			"own files", change(good, func(f *PlannedFile) { f.Path = "/var/lib/kkbundle/receive/receipts.json" }), s,
			"its own files",
		},
		{
			"digest", change(good, func(f *PlannedFile) { f.Digest = "sha256:../../../etc/passwd" }), s,
			"is not a SHA-256 digest",
		},
		{"size", change(good, func(f *PlannedFile) { f.Size = -1 }), s, "is not possible"},
		{
			"set-user-id", change(good, func(f *PlannedFile) { f.Mode |= fs.ModeSetuid }), s,
			"is not a file's permissions",
		},
		{"nowhere", change(good, func(f *PlannedFile) { f.Path = "" }), s, "either a path or members"},
		{"not in the bundle", absent, s, "not in the bundle"},
		{"other content", good, lying, "received content has digest sha256:" + other.Digest[7:]},
		{"too short", good, short, "are missing at its end"},
		{"too long", good, long, "more bytes than expected"},
		{"no such member", packed(entry{name: "bin/y", data: data}), s, "the archive has no bin/x"},
		{
			"link", packed(entry{name: "bin/x", link: "../../etc/passwd", kind: tar.TypeSymlink}), s,
			"is not a regular file",
		},
		{"hard link", packed(entry{name: "bin/x", link: "bin/y", kind: tar.TypeLink}), s, `did you mean "bin/y"`},
		{"directory", packed(entry{name: "bin/x", kind: tar.TypeDir}), s, "is not a regular file"},
		{
			"not an archive", change(packed(), func(f *PlannedFile) { f.Digest, f.Size = s.add([]byte("x")) }), s,
			"the archive is damaged",
		},
		{"damaged archive", damaged, s, "the archive is damaged"},
		{"huge", change(good, func(f *PlannedFile) { f.Size = 1 << 39 }), s, "no space for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			_, err, _ := converse(t, root, Plan{Files: []PlannedFile{c.file}}, c.from, -1)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			for _, path := range []string{"/opt/good", "/opt/x", "/root/x"} {
				if _, err := os.Lstat(root + path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is there: %v", path, err)
				}
			}
		})
	}
}

// TestReceiveChecks does not trust that Send has checked the plan.
func TestReceiveChecks(t *testing.T) {
	t.Parallel()
	var in, out bytes.Buffer
	plan := Plan{Files: []PlannedFile{{
		Name: "x", Digest: "sha256:" + strings.Repeat("0", 64), Path: "/etc/../root/x",
		Mode: 0o644,
	}}}
	if err := wire.WriteMessage(&in, offer{Version: ProtocolVersion, For: toPlace, Plan: plan}); err != nil {
		t.Fatal(err)
	}
	err := Receive(t.Context(), t.TempDir(), &in, &out)
	if err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("got %v", err)
	}
	var a answer
	if err := wire.ReadMessage(&out, &a, wire.MaxAnswer); err != nil || a.Error != err2text(t, plan) {
		t.Errorf("answer %+v, %v", a, err)
	}
}

func err2text(t *testing.T, p Plan) string {
	t.Helper()
	err := p.check()
	if err == nil {
		t.Fatal("the plan is good")
	}
	return err.Error()
}

// TestReceiveLinks plants links in the way: nothing outside the roots may be written.
func TestReceiveLinks(t *testing.T) {
	t.Parallel()
	root, s := t.TempDir(), &source{}
	plan := Plan{Files: []PlannedFile{s.file("a", []byte("a"), "/opt/dir/a", 0o644)}}
	for _, dir := range []string{"opt", "root"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range []string{"../root", filepath.Join(root, "root")} {
		if err := os.Symlink(target, root+"/opt/dir"); err != nil {
			t.Fatal(err)
		}
		if _, err, _ := converse(t, root, plan, s, -1); err == nil {
			t.Errorf("a link to %s was followed", target)
		}
		if entries, _ := os.ReadDir(root + "/root"); len(entries) > 0 {
			t.Fatalf("written outside: %v", entries)
		}
		if err := os.Remove(root + "/opt/dir"); err != nil {
			t.Fatal(err)
		}
	}
	// The administrator may have moved all of /opt to another disk.
	if err := errors.Join(os.RemoveAll(root+"/opt"), os.Mkdir(root+"/data", 0o755),
		os.Symlink("data", root+"/opt")); err != nil {
		t.Fatal(err)
	}
	mustConverse(t, root, plan, s)
	wantFile(t, root, "/data/dir/a", []byte("a"), 0o644)
}

// TestReceiveOtherFilesystem has the part and its place on different filesystems.
func TestReceiveOtherFilesystem(t *testing.T) {
	t.Parallel()
	const shm = "/dev/shm"
	dir, err := os.MkdirTemp(shm, "kktest") //nolint:usetesting // the point is another filesystem
	if err != nil {
		t.Skipf("needs %s: %v", shm, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root, s := t.TempDir(), &source{}
	if err := os.Symlink(dir, root+"/opt"); err != nil {
		t.Fatal(err)
	}
	data := random(400000, 10)
	plan := Plan{Files: []PlannedFile{s.file("a", data, "/opt/a", 0o755)}}
	if got := mustConverse(t, root, plan, s); len(got.Changed) != 1 {
		t.Errorf("changed %v", got.Changed)
	}
	wantFile(t, root, "/opt/a", data, 0o755)
	noLitter(t, root)
	noLitter(t, dir)
}

// TestReceiveFull has a place for which there is no room.
func TestReceiveFull(t *testing.T) {
	t.Parallel()
	root, s := t.TempDir(), &source{}
	if err := os.Mkdir(root+"/opt", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", root+"/opt", "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs to mount a small filesystem: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root+"/opt", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	data := random(2<<20, 11)
	file := s.file("a", data, "/opt/a", 0o755)
	packed := PlannedFile{Name: "b", Unpack: []Member{{Name: "b", Path: "/opt/b", Mode: 0o755}}}
	packed.Digest, packed.Size = s.add(archive(t, true, entry{name: "b", data: data}))
	for _, f := range []PlannedFile{file, packed} {
		_, err, _ := converse(t, root, Plan{Files: []PlannedFile{f}}, s, -1)
		if err == nil || !strings.Contains(err.Error(), "no space for /opt/"+f.Name+": 2097152 bytes needed") {
			t.Errorf("%s: got %v", f.Name, err)
		}
	}
	if entries, err := os.ReadDir(root + "/opt"); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	// What has arrived is kept: with room, nothing has to be sent again.
	if err := unix.Mount("none", root+"/opt", "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if got := mustConverse(t, root, Plan{Files: []PlannedFile{file, packed}}, s); got.Sent != 0 ||
		len(got.Changed) != 2 {
		t.Errorf("with room: %+v", got)
	}
}

func TestReceiveCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	in, w := io.Pipe() // nobody writes
	defer func() { _ = w.Close() }()
	done := make(chan error, 1)
	go func() { done <- Receive(ctx, t.TempDir(), in, io.Discard) }()
	stop := errors.New("terminated")
	cancel(stop)
	if err := <-done; !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestSendVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answers []answer
		want    string
	}{
		{[]answer{{Version: 1, Done: true}}, "version 1"},
		{[]answer{{Version: ProtocolVersion, Error: "the disk is broken"}}, "the disk is broken"},
		{[]answer{{Version: ProtocolVersion}}, "wants nothing"},
		{[]answer{{Version: ProtocolVersion, Want: []want{{Digest: "sha256:none"}}}}, "not in the plan"},
		{nil, "the other side has ended"},
	} {
		var out bytes.Buffer
		for _, a := range c.answers {
			if err := wire.WriteMessage(&out, a); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Send(t.Context(), io.Discard, &out, Plan{}, Source{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	// A shell that says something else, as `kkbundle-node` that is not there would.
	_, err := Send(t.Context(), io.Discard, strings.NewReader("bash: kkbundle-node: not found"), Plan{}, Source{})
	if err == nil || !strings.Contains(err.Error(), "this is not kkbundle-node") {
		t.Errorf("got %v", err)
	}
}

// FuzzReceive gives the helper anything: nothing may be written outside its roots, and it must come to an end.
func FuzzReceive(f *testing.F) {
	s := &source{}
	plan := Plan{Files: []PlannedFile{s.file("a", []byte("content"), "/opt/a", 0o755)}}
	tgz := PlannedFile{Name: "b", Unpack: []Member{{Name: "x", Path: "/opt/x", Mode: 0o755}}}
	tgz.Digest, tgz.Size = s.add(archive(f, true, entry{name: "x", data: []byte("y")}))
	for _, files := range [][]PlannedFile{plan.Files, {tgz}, {}, {plan.Files[0], tgz}} {
		var in bytes.Buffer
		_ = wire.WriteMessage(&in, offer{Version: ProtocolVersion, For: toPlace, Plan: Plan{Files: files}})
		for _, file := range files {
			_ = wire.WriteFrame(&in, s.blobs[file.Digest])
		}
		f.Add(in.Bytes())
	}
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root := t.TempDir()
		var out bytes.Buffer
		err := Receive(t.Context(), root, bytes.NewReader(data), &out)
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			if n := e.Name(); n != "usr" && n != "opt" && n != "etc" && n != "var" {
				t.Errorf("%s was made", n)
			}
		}
		for out.Len() > 0 {
			var a answer
			if readErr := wire.ReadMessage(&out, &a, wire.MaxAnswer); readErr != nil {
				t.Fatalf("answer: %v", readErr)
			}
			if out.Len() == 0 && (a.Error == "") != (err == nil) {
				t.Errorf("last answer %+v, error %v", a, err)
			}
		}
	})
}

// FuzzSend gives the other side anything: it must come to an end, and open only what is in the plan.
func FuzzSend(f *testing.F) {
	s := &source{}
	plan := Plan{Files: []PlannedFile{s.file("a", random(100, 1), "/opt/a", 0o755)}}
	for _, answers := range [][]answer{
		{{Version: 1, Done: true, Changed: []string{"/opt/a"}}},
		{{Version: 1, Want: []want{{Digest: plan.Files[0].Digest, Offset: 50}}}, {Version: 1, Done: true}},
		{{Version: 1, Error: "no"}},
	} {
		var out bytes.Buffer
		for _, a := range answers {
			_ = wire.WriteMessage(&out, a)
		}
		f.Add(out.Bytes())
	}
	f.Add([]byte("sudo: a password is required\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		from := &source{blobs: s.blobs}
		summary, err := Send(t.Context(), io.Discard, bytes.NewReader(data), plan, from.from())
		if len(from.opened) > maxRounds {
			t.Errorf("opened %v", from.opened)
		}
		if err == nil && summary.Sent > maxRounds*plan.Files[0].Size {
			t.Errorf("sent %d bytes", summary.Sent)
		}
	})
}

func BenchmarkReceive(b *testing.B) {
	s := &source{}
	data := random(64<<20, 1)
	plan := Plan{Files: []PlannedFile{s.file("a", data, "/opt/a", 0o755)}}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		root := b.TempDir()
		toHost, in := io.Pipe()
		out, fromHost := io.Pipe()
		go func() { _ = Receive(b.Context(), root, toHost, fromHost) }()
		if _, err := Send(b.Context(), in, out, plan, s.from()); err != nil {
			b.Fatal(err)
		}
	}
}
