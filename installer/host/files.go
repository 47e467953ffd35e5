package host

import (
	"bytes"
	"context"
	_ "embed" // scripts
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// maxOutput bounds Output: commands whose output is parsed print little.
const maxOutput = 4 << 20

// Output returns a command's standard output, at most 4 MiB.
func Output(ctx context.Context, h Host, args ...string) ([]byte, error) {
	out := capped.Buffer{Most: maxOutput}
	err := h.Run(ctx, Cmd{Args: args, Stdout: &out})
	if err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// absentCode is the exit code of readFileScript for a file that does not exist.
const absentCode = 66

//go:embed scripts/read-file.sh
var readFileScript string

// ReadFile returns a file of the host of at most most bytes. The error matches fs.ErrNotExist if it is missing.
func ReadFile(ctx context.Context, h Host, name string, most int) ([]byte, error) {
	if err := checkPath(name); err != nil {
		return nil, fmt.Errorf("%s: read: %w", h, err)
	}
	out := capped.Buffer{Most: most}
	err := h.Run(ctx, Cmd{Args: Script("read-file.sh", readFileScript, name, strconv.Itoa(absentCode)), Stdout: &out})
	if exit, ok := errors.AsType[*ExitError](err); ok && exit.Code == absentCode {
		return nil, fmt.Errorf("%s: %s: %w", h, name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

//go:embed scripts/write-file.sh
var writeFileScript string

// WriteFile writes a file with this content and these permissions, owned by root, and creates missing parents (0755).
// The name always has a whole file: the old one or the new one. changed reports whether the file differed. A symbolic
// link is replaced, not followed. Content may be secret.
func WriteFile(ctx context.Context, h Host, name string, mode fs.FileMode, data []byte) (changed bool, err error) {
	if err := checkPath(name); err != nil {
		return false, fmt.Errorf("%s: write: %w", h, err)
	}
	if mode&^fs.ModePerm != 0 || mode == 0 {
		return false, fmt.Errorf("%s: write %s: mode %v is not a file's permissions", h, name, mode)
	}
	return write(ctx, h, name, fmt.Sprintf("%04o", uint32(mode)), data)
}

// EditFile replaces the content of a file of the host like WriteFile, but keeps its mode and owner. A symbolic link is
// followed. A missing file is created with mode 0644, owned by root.
func EditFile(ctx context.Context, h Host, name string, data []byte) (changed bool, err error) {
	if err := checkPath(name); err != nil {
		return false, fmt.Errorf("%s: write: %w", h, err)
	}
	return write(ctx, h, name, "keep", data)
}

func write(ctx context.Context, h Host, name, mode string, data []byte) (changed bool, err error) {
	out := capped.Buffer{Most: maxStderr}
	err = h.Run(ctx, Cmd{
		Args:   Script("write-file.sh", writeFileScript, name, mode, strconv.Itoa(len(data))),
		Stdin:  bytes.NewReader(data),
		Stdout: &out,
	})
	if err != nil {
		var exit *ExitError
		if errors.As(err, &exit) { // the script's output is not for people
			return false, fmt.Errorf("%s: write %s: %s: %w", h, name, oneLine(exit.Stderr), &ExitError{
				Host: exit.Host, Args: []string{"write", name}, Code: exit.Code,
			})
		}
		return false, fmt.Errorf("write %s: %w", name, err)
	}
	switch said := strings.TrimSpace(out.String()); said {
	case "changed":
		return true, nil
	case "same":
		return false, nil
	default:
		return false, fmt.Errorf("%s: write %s: unexpected answer %q", h, name, said)
	}
}

func checkPath(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%q is not the absolute path of a file", name)
	}
	return nil
}

// A Stream is a running command whose standard input is written and whose standard output is read.
type Stream struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Open starts a command and returns its streams. It runs until it ends, ctx is done or the Stream is closed. Read and
// Close return an error of starting it.
func Open(ctx context.Context, h Host, args ...string) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	s := &Stream{stdin: stdin, stdout: stdout, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = h.Run(ctx, Cmd{Args: args, Stdin: in, Stdout: out})
		// Both sides get the reason that the command ended: a writer must learn of a lost host, too. A nil error is EOF
		// for the reader, and a closed pipe for the writer.
		_ = in.CloseWithError(s.err)
		_ = out.CloseWithError(s.err)
	}()
	return s
}

// Read reads the command's output. After its end the error is io.EOF if the code was 0, and Run's error otherwise.
func (s *Stream) Read(p []byte) (int, error) { return s.stdout.Read(p) }

// Write writes to the command's standard input. After the command's end the error is Run's, or io.ErrClosedPipe if
// the code was 0.
func (s *Stream) Write(p []byte) (int, error) { return s.stdin.Write(p) }

// CloseWrite ends the command's standard input.
func (s *Stream) CloseWrite() error { return s.stdin.Close() }

// Close ends the command's standard input, discards its further output, gives it a moment to exit, and kills it
// otherwise. It returns Run's error, and nil if the command was killed.
func (s *Stream) Close() error {
	_ = s.stdin.Close()
	go func() { _, _ = io.Copy(io.Discard, s.stdout) }()
	defer s.cancel()
	select {
	case <-s.done:
		return s.err
	case <-time.After(closeGrace):
		s.cancel()
		<-s.done
		return nil
	}
}

// closeGrace is the time that a command has to exit after its input has ended.
const closeGrace = 2 * time.Second
