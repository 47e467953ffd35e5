//go:build linux

// Package worker runs a writable registry in a process of its own: kkbundle-registry, which kkbundle carries anyway,
// so that the CNCF distribution is not linked into kkbundle, too.
//
// The two processes have a pair of connected sockets: standard input of the worker. Each message is one JSON document
// in one packet. Requests go to the worker, with the listener that they are about; answers and log records come back.
// Certificates and keys travel there, too, and never as arguments or files. If the other end closes, the worker ends
// at once, so it never outlives kkbundle.
package worker

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/registry/dirlock"
)

// Argument makes kkbundle-registry a worker.
const Argument = "worker"

// Options configure a registry as those of package embedded do.
type Options struct {
	Dir, Users, Pullers string
	Delete, ReadOnly    bool
}

// CollectOptions configure a collection as those of package embedded do.
type CollectOptions struct {
	Dir              string
	DryRun, Untagged bool
}

// Collected counts the removed (or, in a dry run, removable) content.
type Collected struct {
	Manifests int   `json:"manifests"`
	Blobs     int   `json:"blobs"`
	Bytes     int64 `json:"bytes"`
}

type verb string

const (
	open    verb = "open"
	run     verb = "run"     // with a listener; answered when it has ended
	metrics verb = "metrics" // the same
	reload  verb = "reload"
	stop    verb = "stop" // ends run, metrics and collect, with time for transfers
	closed  verb = "close"
	collect verb = "collect"
)

type request struct {
	ID          int
	Do          verb
	Level       slog.Level      // of the records that are wanted
	Open        *Options        `json:",omitempty"`
	Collect     *CollectOptions `json:",omitempty"`
	Certificate *certificate    `json:",omitempty"` // nil is plain HTTP, or no change
}

type answer struct {
	ID        int
	Failure   *failure   `json:",omitempty"`
	Collected *Collected `json:",omitempty"`
	Record    *record    `json:",omitempty"` // a log record and no answer
}

// A failure is an error of the worker.
type failure struct {
	Text   string
	Remedy string               `json:",omitempty"`
	Locked *dirlock.LockedError `json:",omitempty"`
}

func failed(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		f.Remedy = hinted.Hint()
	}
	errors.As(err, &f.Locked)
	return f
}

// A workerError is an error of the worker, as it would be in this process.
type workerError struct {
	failure
	ended error // of the context
}

// Error implements error.
func (e *workerError) Error() string { return e.Text }

// Hint returns the remedy.
func (e *workerError) Hint() string { return e.Remedy }

// Unwrap implements errors.Unwrap.
func (e *workerError) Unwrap() []error {
	var list []error
	if e.Locked != nil {
		list = append(list, e.Locked)
	}
	if e.ended != nil {
		list = append(list, e.ended)
	}
	return list
}

// A certificate is a tls.Certificate in DER.
type certificate struct {
	Chain [][]byte
	Key   []byte
}

func packCertificate(c *tls.Certificate) (*certificate, error) {
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("the certificate's key: %w", err)
	}
	return &certificate{Chain: c.Certificate, Key: key}, nil
}

func (c *certificate) unpack() (*tls.Certificate, error) {
	key, err := x509.ParsePKCS8PrivateKey(c.Key)
	if err != nil {
		return nil, fmt.Errorf("the certificate's key: %w", err)
	}
	return &tls.Certificate{Certificate: c.Chain, PrivateKey: key}, nil
}

// A record is a log record. Each attribute has one value.
type record struct {
	Time    time.Time
	Level   slog.Level
	Message string
	Attrs   []attr `json:",omitempty"`
}

type attr struct {
	Key    string
	Number *int64         `json:",omitempty"`
	Took   *time.Duration `json:",omitempty"`
	Yes    *bool          `json:",omitempty"`
	Text   string         `json:",omitempty"`
}

func packAttr(a slog.Attr) attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindInt64:
		return attr{Key: a.Key, Number: new(v.Int64())}
	case slog.KindDuration:
		return attr{Key: a.Key, Took: new(v.Duration())}
	case slog.KindBool:
		return attr{Key: a.Key, Yes: new(v.Bool())}
	default:
		return attr{Key: a.Key, Text: v.String()}
	}
}

func (a attr) unpack() slog.Attr {
	switch {
	case a.Number != nil:
		return slog.Int64(a.Key, *a.Number)
	case a.Took != nil:
		return slog.Duration(a.Key, *a.Took)
	case a.Yes != nil:
		return slog.Bool(a.Key, *a.Yes)
	}
	return slog.String(a.Key, a.Text)
}

// maxMessage is what a socket's buffer holds by default on Linux, 208 KiB, and a little more.
const maxMessage = 256 << 10

// A link is one end of the sockets.
type link struct{ conn *net.UnixConn }

// newLink uses and closes the file.
func newLink(f *os.File) (link, error) {
	conn, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return link{}, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return link{}, errors.Join(errors.New("standard input is not the socket of kkbundle"), conn.Close())
	}
	return link{unixConn}, nil
}

// send sends a message, with a file if there is one. Any goroutine may.
func (l link) send(message any, file *os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = syscall.UnixRights(int(file.Fd()))
	}
	_, _, err = l.conn.WriteMsgUnix(data, rights, nil)
	return err
}

// receive receives a message into buffer and decodes it. One goroutine does.
func (l link) receive(message any, buffer []byte) (file *os.File, err error) {
	rights := make([]byte, syscall.CmsgSpace(4))
	n, got, _, _, err := l.conn.ReadMsgUnix(buffer, rights)
	if err != nil {
		return nil, err
	}
	if file, err = fileOf(rights[:got]); err != nil {
		return nil, err
	}
	return file, json.Unmarshal(buffer[:n], message)
}

func fileOf(rights []byte) (*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	list, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			return os.NewFile(uintptr(fd), "listener"), nil
		}
	}
	return nil, nil
}
