package cli

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/kkbundle/kkbundle/plain"
)

// sizeGrammar is a whole number and a unit: binary, decimal, or none for bytes.
var sizeGrammar = regexp.MustCompile(`^([0-9]{1,19})([KMGT]i?)?B?$`)

// parseSize reads a number of bytes as people write it: 4GiB is 4 * 2^30, 4GB is 4 * 10^9.
func parseSize(text string) (int64, error) {
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

// A sizeFlag is a flag whose value is a size; 0 is none.
type sizeFlag struct {
	bytes int64
	text  string // as it was given
	least int64
}

// String implements pflag.Value.
func (f *sizeFlag) String() string { return f.text }

// Type implements pflag.Value.
func (*sizeFlag) Type() string { return "SIZE" }

// Set implements pflag.Value.
func (f *sizeFlag) Set(text string) error {
	n, err := parseSize(text)
	if err != nil {
		return err
	}
	if n < f.least {
		return fmt.Errorf("%s is too little: at least %s are needed", text, plain.Size(f.least))
	}
	f.bytes, f.text = n, text
	return nil
}
