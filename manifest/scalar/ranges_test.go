package scalar

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExpandRange(t *testing.T) {
	for text, want := range map[string][]string{
		"node":                      {"node"},
		"node[1:3]":                 {"node1", "node2", "node3"},
		"n[08:10].x":                {"n08.x", "n09.x", "n10.x"},
		"n[5:5]":                    {"n5"},
		"n[2:1]":                    nil,
		"n[1:10001]":                nil,
		"n[1]":                      nil,
		"n[:]":                      nil,
		"n[-1:2]":                   nil,
		"n[1:2][3:4]":               nil,
		"n]":                        nil,
		"n[1:99999999999999999999]": nil,
	} {
		got, err := ExpandRange(text)
		if diff := cmp.Diff(got, want); diff != "" || (err != nil) != (want == nil) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if got, err := ExpandRange("n[1:10000]"); err != nil || len(got) != MaxHosts {
		t.Errorf("largest range: %d, %v", len(got), err)
	}
}
