package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/kkbundle/kkbundle/installer/precheck"
)

// List describes checks in Markdown for people, with a heading for each.
func List(w io.Writer, checks []precheck.Check) error {
	var b strings.Builder
	for i, c := range checks {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n\n", c.ID, plainMarkdown(sentence("wanted: "+c.Title)))
		fmt.Fprintf(&b, "- Otherwise: %s\n- Fix: %s\n", plainMarkdown(c.Why), plainMarkdown(c.Fix))
		fmt.Fprintf(&b, "- Level: %s. Groups: %s", plainMarkdown(c.Means()), strings.Join(c.Groups, ", "))
		if len(c.Roles) > 0 {
			b.WriteString(". Hosts: ")
			for i, role := range c.Roles {
				if i > 0 {
					b.WriteString(", ")
				}
				b.WriteString(plainMarkdown(string(role)))
			}
		}
		b.WriteString("\n")
		if len(c.Kubeadm) > 0 {
			fmt.Fprintf(&b, "- In kubeadm: %s\n", strings.Join(c.Kubeadm, ", "))
		}
		fmt.Fprintf(&b, "- Source: %s\n", plainMarkdown(c.Source))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
