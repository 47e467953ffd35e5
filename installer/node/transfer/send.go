package transfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kkbundle/kkbundle/installer/node/wire"
)

// ProtocolVersion is the version of the protocol between Send and Receive. kkbundle installs its own helper on hosts,
// so both sides always have the same version.
const ProtocolVersion = 3

// A purpose tells the helper what to do with the plan of a session.
type purpose string

const (
	toPlace purpose = "place" // bring files into their places
	toKeep  purpose = "keep"  // keep their content for a later session
	toLook  purpose = "look"  // list the missing content
)

// An offer begins a session.
type offer struct {
	Version int     `json:"version"`
	For     purpose `json:"for"`
	Plan    Plan    `json:"plan"`
}

// An answer is a message of the helper: its missing content, completion, or an error.
type answer struct {
	Version int      `json:"version"`
	Want    []want   `json:"want,omitempty"`
	Done    bool     `json:"done,omitempty"`
	Changed []string `json:"changed,omitempty"`
	Error   string   `json:"error,omitempty"`
	Pull    *Pull    `json:"pull,omitempty"` // and nothing else
}

// A Pull is what a host tells of content that it takes from a registry: the number of further bytes, or the Problem
// that ended it.
type Pull struct {
	Digest   string `json:"digest"`
	Registry string `json:"registry"` // its address
	Bytes    int64  `json:"bytes,omitempty"`
	Problem  string `json:"problem,omitempty"`
	// Answered means that the Problem is the registry's answer, and not that there was none.
	Answered bool `json:"answered,omitempty"`
}

// A want is content that the host lacks from an offset on.
type want struct {
	Digest string `json:"digest"`
	Offset int64  `json:"offset"`
}

// An Opener opens content at an offset. The result must have all of the remaining content.
type Opener func(ctx context.Context, digest string, offset int64) (io.ReadCloser, error)

// A Source is the content that a host may get.
type Source struct {
	Open   Opener
	Pulled func(Pull) // hears what the host takes from registries instead; nil if the plan has none
}

// Send brings a host's files into the planned state. in is the standard input of `kkbundle-node receive` on the host,
// out its standard output. Only content that is missing, and that no registry of the plan has given to the host, is
// opened and sent. After a failure, received content is kept on the host, and the next Send resumes.
func Send(ctx context.Context, in io.Writer, out io.Reader, plan Plan, source Source) (Summary, error) {
	return send(ctx, in, out, offer{ProtocolVersion, toPlace, plan}, source)
}

// Keep is Send, but places no file. The host keeps the content for a week, and a Send finds it there.
func Keep(ctx context.Context, in io.Writer, out io.Reader, plan Plan, source Source) (Summary, error) {
	return send(ctx, in, out, offer{ProtocolVersion, toKeep, plan}, source)
}

// A Lack is content that is not in all of its places on a host.
type Lack struct {
	Digest string
	// Rest is the number of bytes that the host has not received: 0 after a Keep.
	Rest int64
}

// Look returns the content of a plan that is missing on a host.
func Look(in io.Writer, out io.Reader, plan Plan) ([]Lack, error) {
	s := sender{plan: plan}
	if err := s.begin(in, out, offer{ProtocolVersion, toLook, plan}); err != nil {
		return nil, err
	}
	a, err := s.hear(out)
	if err != nil {
		return nil, err
	}
	var list []Lack
	for _, w := range a.Want {
		size, _ := plan.size(w.Digest)
		list = append(list, Lack{w.Digest, size - w.Offset})
	}
	return list, nil
}

// begin offers a plan.
func (s *sender) begin(in io.Writer, out io.Reader, o offer) error {
	if err := o.Plan.check(); err != nil {
		return err
	}
	if err := wire.WriteMessage(in, o); err != nil {
		return s.why(out, fmt.Errorf("send the plan: %w", err))
	}
	return nil
}

func send(ctx context.Context, in io.Writer, out io.Reader, o offer, source Source) (Summary, error) {
	s := sender{in: in, source: source, plan: o.Plan}
	if err := s.begin(in, out, o); err != nil {
		return Summary{}, err
	}
	for {
		a, err := s.hear(out)
		if err != nil {
			return Summary{Sent: s.sent}, err
		}
		if a.Done {
			return Summary{Changed: a.Changed, Sent: s.sent}, nil
		}
		if err := s.send(ctx, out, a.Want); err != nil {
			return Summary{Sent: s.sent}, err
		}
	}
}

// maxRounds is how often a host may request content: once for missing content, and once more for damaged content.
const maxRounds = 3

type sender struct {
	in     io.Writer
	source Source
	plan   Plan
	sent   int64
	rounds int
}

// A RemoteError is an error reported by the helper.
type RemoteError struct{ Message string }

// Error returns the helper's message.
func (e *RemoteError) Error() string { return e.Message }

// hear reads an answer and validates it. What the host pulls meanwhile is passed on.
func (s *sender) hear(out io.Reader) (answer, error) {
	var a answer
	for {
		a = answer{}
		if err := wire.ReadMessage(out, &a, wire.MaxAnswer); err != nil {
			return a, fmt.Errorf("receive the helper's answer: %w", err)
		}
		if a.Pull == nil || a.Error != "" {
			break
		}
		if _, ok := s.plan.size(a.Pull.Digest); !ok || a.Pull.Bytes < 0 || s.source.Pulled == nil {
			return a, fmt.Errorf("the helper pulls %s, which is not in the plan", a.Pull.Digest)
		}
		s.source.Pulled(*a.Pull)
	}
	if a.Error != "" {
		return a, &RemoteError{Message: a.Error}
	}
	if a.Version != ProtocolVersion {
		return a, fmt.Errorf("the helper speaks version %d, this kkbundle %d", a.Version, ProtocolVersion)
	}
	if s.rounds++; !a.Done && s.rounds > maxRounds {
		return a, errors.New("the host keeps asking for the same content: check its disk")
	}
	if !a.Done && len(a.Want) == 0 {
		return a, errors.New("the helper wants nothing and is not done: this is not kkbundle-node")
	}
	for _, w := range a.Want {
		if size, ok := s.plan.size(w.Digest); !ok || w.Offset < 0 || w.Offset > size {
			return a, fmt.Errorf("the helper asks for byte %d of %s, which is not in the plan", w.Offset, w.Digest)
		}
	}
	return a, nil
}

// size returns the size of content in the plan.
func (p Plan) size(digest string) (int64, bool) {
	for _, f := range p.Files {
		if f.Digest == digest {
			return f.Size, true
		}
	}
	return 0, false
}

// send streams the wanted content. Meanwhile the helper is silent unless it fails; then it exits, so that writing
// fails.
func (s *sender) send(ctx context.Context, out io.Reader, wanted []want) error {
	for _, w := range wanted {
		size, _ := s.plan.size(w.Digest)
		if err := s.sendOne(ctx, w, size-w.Offset); err != nil {
			var local *sourceError
			if errors.As(err, &local) || ctx.Err() != nil {
				return fmt.Errorf("send %s: %w", w.Digest, err)
			}
			return s.why(out, fmt.Errorf("send %s: %w", w.Digest, err))
		}
	}
	return nil
}

// A sourceError is content that could not be read here: it is no error of the host.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

func (s *sender) sendOne(ctx context.Context, w want, rest int64) (err error) {
	if rest == 0 { // all bytes have arrived, but are not in place yet
		return nil
	}
	r, err := s.source.Open(ctx, w.Digest, w.Offset)
	if err != nil {
		return &sourceError{err}
	}
	defer func() {
		if closeErr := r.Close(); err == nil && closeErr != nil {
			err = &sourceError{closeErr}
		}
	}()
	buf := make([]byte, 4+wire.Chunk)
	for rest > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := io.ReadFull(r, buf[4:4+min(rest, wire.Chunk)])
		if n == 0 || (err != nil && !errors.Is(err, io.ErrUnexpectedEOF)) {
			return &sourceError{fmt.Errorf("%d bytes are missing at its end: %w", rest, err)}
		}
		binary.BigEndian.PutUint32(buf, uint32(n))
		if _, err := s.in.Write(buf[:4+n]); err != nil {
			return err
		}
		rest -= int64(n)
		s.sent += int64(n)
	}
	// The source checks its content when it is read to the end.
	if n, err := io.ReadFull(r, buf[:1]); n > 0 {
		return &sourceError{errors.New("more bytes than expected")}
	} else if !errors.Is(err, io.EOF) {
		return &sourceError{err}
	}
	return nil
}

// why prefers the helper's last message to the broken pipe caused by its exit.
func (s *sender) why(out io.Reader, err error) error {
	var a answer
	if readErr := wire.ReadMessage(out, &a, wire.MaxAnswer); readErr == nil && a.Error != "" {
		return &RemoteError{Message: a.Error}
	} else if readErr != nil && !errors.Is(readErr, wire.ErrGone) && !errors.Is(err, readErr) {
		return errors.Join(err, readErr)
	}
	return err
}
