package bundle

import (
	"io"

	"github.com/kkbundle/kkbundle/bundle/agefile"
)

// most returns the most bytes of a bundle written with these options.
func (o WriteOptions) most(content int64) int64 {
	if len(o.Recipients) == 0 {
		return content
	}
	return agefile.MaxSize(content)
}

// An output is the writer of a bundle's bytes.
type output interface {
	io.Writer
	Finish() error // after the last byte
	Stop()         // always, also after an error
}

// output returns the output that encrypts to the recipients, if there are any, and writes to w.
func (o WriteOptions) output(w io.Writer) (output, error) {
	if len(o.Recipients) == 0 {
		return plainOutput{w}, nil
	}
	return agefile.Encrypt(w, o.Recipients)
}

// A plainOutput encrypts nothing.
type plainOutput struct{ io.Writer }

func (plainOutput) Finish() error { return nil }
func (plainOutput) Stop()         {}

// A counter counts the bytes that pass through it.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
