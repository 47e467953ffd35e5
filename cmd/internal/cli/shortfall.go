package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A shortfall is a gap in an item that the manifest allows.
type shortfall struct {
	ref     string
	lacks   []string // platforms
	unknown bool     // the list of referrers may be incomplete
	// unsigned is the distribution of a package that is accepted without a signature.
	unsigned string
}

// warnings returns a line for each shortfall.
func warnings(list []shortfall) []string {
	var lines []string
	for _, s := range list {
		if len(s.lacks) > 0 {
			lines = append(lines, s.ref+" lacks "+strings.Join(s.lacks, ", "))
		}
		if s.unknown {
			lines = append(lines, s.ref+
				" may lack signatures and other things attached to it: not all could be looked up when it was locked")
		}
	}
	return append(lines, unsignedPackages(list)...)
}

// unsignedPackages returns a line for each distribution with packages that nothing vouches for.
func unsignedPackages(list []shortfall) []string {
	unsigned := map[string]int{}
	for _, s := range list {
		if s.unsigned != "" {
			unsigned[s.unsigned]++
		}
	}
	var lines []string
	for _, distribution := range slices.Sorted(maps.Keys(unsigned)) {
		lines = append(lines, fmt.Sprintf(
			"%s of %s without a checked signature (allowUnsigned): nothing vouches for them",
			plain.Count(unsigned[distribution], "package"), distribution))
	}
	return lines
}

func shortfallsOf(items []bundle.Item) []shortfall {
	var list []shortfall
	for _, it := range items {
		s := shortfall{
			ref:     it.Ref,
			unknown: it.Descriptor.Annotations[bundle.AnnotationReferrers] == manifest.ReferrersUnknown,
		}
		if lacks := it.Descriptor.Annotations[bundle.AnnotationLacks]; lacks != "" {
			s.lacks = strings.Split(lacks, ",")
		}
		s.unsigned = unsignedPackage(it.Ref,
			manifest.Verification(it.Descriptor.Annotations[bundle.AnnotationVerified]))
		list = append(list, s)
	}
	return list
}

func lockShortfalls(l *manifest.Lock) []shortfall {
	var list []shortfall
	for _, pin := range l.Items {
		list = append(list, shortfall{
			pin.Ref, pin.Lacks, pin.Referrers == manifest.ReferrersUnknown,
			unsignedPackage(pin.Ref, pin.Verified),
		})
	}
	return list
}

// unsignedPackage returns the distribution of a package that nothing vouches for, "" for any other item.
func unsignedPackage(ref string, by manifest.Verification) string {
	distribution, ok := manifest.PackageDistribution(ref)
	if !ok || by != manifest.VerifiedUnsigned {
		return ""
	}
	return distribution
}
