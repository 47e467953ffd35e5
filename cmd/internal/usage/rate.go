package usage

import (
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/internal/pace"
)

// A Rate is the flag --rate: the bytes that a command sends in a second.
type Rate struct{ size Size }

// AddFor adds the flag. Its help ends with what, such as "to the registry".
func (r *Rate) AddFor(f *pflag.FlagSet, what string) {
	r.size.Least = pace.Least
	f.Var(&r.size, "rate", "send at most so many bytes a second "+what+", such as 20M (default no limit)")
}

// Limit returns the limit, nil without the flag.
func (r *Rate) Limit() *pace.Limit { return pace.PerSecond(r.size.Bytes) }

// String returns the rate as it was given, "" without the flag.
func (r *Rate) String() string { return r.size.String() }
