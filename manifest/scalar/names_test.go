package scalar

import (
	"fmt"
	"strings"
	"testing"
)

func TestRanges(t *testing.T) {
	t.Parallel()
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("node%d", i*2)
	}
	for _, c := range []struct{ names, want string }{
		{"a", "a"},
		{"node1 node2 node3", "node1, node2, node3"},
		{"node1 node2 node3 node4", "node[1:4]"},
		{"node4 node2 node3 node1 cp1", "node[1:4], cp1"},
		{"node8 node9 node10 node11", "node[8:11]"},
		{"node08 node09 node10 node11", "node[08:11]"},
		{"node8 node09 node10 node11", "node8, node[09:11]"},
		{"n098 n099 n100 n101", "n[098:101]"},
		{
			"node1.k8s.example node2.k8s.example node3.k8s.example node5.k8s.example",
			"node[1:3].k8s.example, node5.k8s.example",
		},
		{"r1n1 r1n2 r1n3 r2n1 r2n2 r2n3", "r1n[1:3], r2n[1:3]"},
		{"a b c d", "a, b, c, d"},
		{"n99999999999999999999 n1 n2 n3", "n99999999999999999999, n[1:3]"},
		{"\x1b[2J1 \x1b[2J2 \x1b[2J3 \x1b[2J4", "\ufffd[2J[1:4]"},
		{
			strings.Join(many, " "),
			"node0, node2, node4, node6, node8, node10, node12, node14, node16, node18, node20, node22, and 28 more",
		},
	} {
		if got := Ranges(strings.Fields(c.names)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.names, got, c.want)
		}
	}
}
