package adopt

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// A Report says what kkbundle can do for a cluster, and what it would do to it. It has no secrets.
type Report struct {
	Version    int    `json:"version"` // 1
	Cluster    string `json:"cluster"`
	Layout     Layout `json:"layout"`
	Kubernetes string `json:"kubernetes"`
	Nodes      []Node `json:"nodes"`
	// Cares are the parts that kkbundle can look after.
	Cares []Care `json:"looksAfter"`
	// Changes are what an installation or an upgrade with the written files would change.
	Changes []Change `json:"changes"`
	// Gaps are the parts that kkbundle cannot look after.
	Gaps []Gap `json:"cannot"`
	// Files are the written ones.
	Files []string `json:"files"`
}

// A Node is one of the cluster.
type Node struct {
	Name         string `json:"name"`
	Address      string `json:"address"`
	ControlPlane bool   `json:"controlPlane"`
	Kubelet      string `json:"kubelet"`
	Runtime      string `json:"runtime"`
	System       string `json:"system"`
}

// A Care is a part of the cluster with what was found of it.
type Care struct {
	What  string `json:"what"`
	Found string `json:"found"`
}

// A Change is one that an installation or an upgrade would make.
type Change struct {
	What string `json:"what"`
	Text string `json:"text"`
	// Upgrade means that only an upgrade makes it.
	Upgrade bool `json:"upgrade,omitempty"`
	// Hosts are those on which something differs; none for every node.
	Hosts []string `json:"hosts,omitempty"`
}

// A Gap is a part that kkbundle cannot look after.
type Gap struct {
	What string `json:"what"`
	Why  string `json:"why"`
	// Instead is the way round.
	Instead string `json:"instead"`
}

// columns is the width of the report as a text.
const columns = 80

// WriteText writes the report for people, at most 80 columns wide except for words that are longer.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Cluster %s: layout of %s, Kubernetes %s, %s\n\n", plain.Line(r.Cluster), r.Layout.title(),
		plain.Line(r.Kubernetes), plain.Count(len(r.Nodes), "node"))
	for _, n := range r.Nodes {
		role := "worker"
		if n.ControlPlane {
			role = "control plane"
		}
		item(&b, n.Name, strings.Join([]string{n.Address, role, "kubelet " + n.Kubelet, n.Runtime, n.System}, ", "))
	}
	b.WriteString("\nFit for kkbundle\n\n")
	for _, c := range r.Cares {
		item(&b, c.What, c.Found)
	}
	b.WriteString("\nAn install or upgrade with the written files would change\n\n")
	for _, c := range r.Changes {
		text := c.Text
		if c.Upgrade {
			text = "upgrade: " + text
		}
		if len(c.Hosts) > 0 {
			text += " (" + strings.Join(c.Hosts, ", ") + ")"
		}
		item(&b, c.What, text)
	}
	b.WriteString("\nNot looked after by kkbundle\n\n")
	if len(r.Gaps) == 0 {
		b.WriteString("  nothing of what was found\n")
	}
	for _, g := range r.Gaps {
		item(&b, g.What, g.Why)
		item(&b, "", "-> "+g.Instead)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// item writes a name and a text beside it.
func item(b *strings.Builder, name, text string) {
	const indent, width = 2, 18
	name = plain.Line(name)
	line := strings.Repeat(" ", indent) + name
	if n := utf8.RuneCountInString(name); n < width {
		line += strings.Repeat(" ", width-n)
	}
	for word := range strings.FieldsSeq(plain.Line(text)) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns && strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", indent+width)
		}
		line += " " + word
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}
