package cli

import (
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

// A shortfall is a gap in an item that the manifest allows.
type shortfall struct {
	ref     string
	lacks   []string // platforms
	unknown bool     // the list of referrers may be incomplete
}

// warnings returns a line for each shortfall.
func warnings(list []shortfall) []string {
	var lines []string
	for _, s := range list {
		if len(s.lacks) > 0 {
			lines = append(lines, s.ref+" lacks "+strings.Join(s.lacks, ", "))
		}
		if s.unknown {
			lines = append(lines, s.ref+" may lack signatures and other things attached to it: not all could be looked up when it was locked")
		}
	}
	return lines
}

func shortfallsOf(items []bundle.Item) []shortfall {
	var list []shortfall
	for _, it := range items {
		s := shortfall{ref: it.Ref, unknown: it.Descriptor.Annotations[bundle.AnnotationReferrers] == manifest.ReferrersUnknown}
		if lacks := it.Descriptor.Annotations[bundle.AnnotationLacks]; lacks != "" {
			s.lacks = strings.Split(lacks, ",")
		}
		list = append(list, s)
	}
	return list
}

func lockShortfalls(l *manifest.Lock) []shortfall {
	var list []shortfall
	for _, pin := range l.Items {
		list = append(list, shortfall{pin.Ref, pin.Lacks, pin.Referrers == manifest.ReferrersUnknown})
	}
	return list
}

// assumed prints the assumptions of the catalog.
func (g *globals) assumed(lines []string) {
	for _, line := range lines {
		g.Note("assumed: %s", plain.Line(line))
	}
}
