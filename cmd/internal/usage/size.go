package usage

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// sizeGrammar matches a whole number and a unit: binary, decimal, or none for bytes.
var sizeGrammar = regexp.MustCompile(`^([0-9]{1,19})([KMGT]i?)?B?$`)

// ParseSize parses a number of bytes: 4GiB is 4 * 2^30, 4GB is 4 * 10^9.
func ParseSize(text string) (int64, error) {
	m := sizeGrammar.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size: write a whole number and a unit, such as 700MB, 4GB (4,000,000,000 bytes) or 4GiB (4,294,967,296 bytes)", text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	units := map[string]int64{
		"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}
	if unit := units[m[2]]; err == nil && n <= math.MaxInt64/unit {
		return n * unit, nil
	}
	return 0, fmt.Errorf("%q is larger than any file", text)
}

// A Size is the value of a flag for a number of bytes; 0 if it is not set.
type Size struct {
	Bytes int64
	Least int64 // smallest valid size

	text string // as it was given
}

// String implements pflag.Value.
func (f *Size) String() string { return f.text }

// Type implements pflag.Value.
func (*Size) Type() string { return "SIZE" }

// Set implements pflag.Value.
func (f *Size) Set(text string) error {
	n, err := ParseSize(text)
	if err != nil {
		return err
	}
	if n < f.Least {
		return fmt.Errorf("%s is too little: at least %s are needed", text, plain.Size(f.Least))
	}
	f.Bytes, f.text = n, text
	return nil
}
