package sitetest

import (
	_ "embed"
	"slices"
)

//go:embed testdata/ca.crt
var authority []byte

// CA returns the certificate of the authority of clusters of tests.
func CA() []byte { return slices.Clone(authority) }
