package usage

import (
	"errors"
	"strconv"
)

// Jobs is the value of a flag for a number of things done at once, at least 1.
type Jobs int

// String implements pflag.Value.
func (j *Jobs) String() string { return strconv.Itoa(int(*j)) }

// Type implements pflag.Value.
func (*Jobs) Type() string { return "int" }

// Set implements pflag.Value.
func (j *Jobs) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("want a whole number from 1")
	}
	*j = Jobs(n)
	return nil
}
