package delta

import (
	"github.com/opencontainers/go-digest"
)

// An Offer is a delta that can be downloaded.
type Offer struct {
	Old, New digest.Digest // identities of the bundles
	Size     int64         // bytes of the delta
}

// Route returns the offers that lead from one of the local bundles to next: one or two, in their order, with the
// fewest bytes. It returns nothing unless they have fewer than limit bytes together.
func Route(have []digest.Digest, next digest.Digest, offers []Offer, limit int64) []Offer {
	here := make(map[digest.Digest]bool, len(have))
	for _, d := range have {
		here[d] = true
	}
	var best []Offer
	try := func(route ...Offer) {
		size := int64(0)
		for _, o := range route {
			if o.Size < 0 || o.Size >= limit-size {
				return
			}
			size += o.Size
		}
		if here[route[0].Old] {
			best, limit = route, size
		}
	}
	for _, last := range offers {
		if last.New != next {
			continue
		}
		try(last)
		for _, first := range offers {
			if first.New == last.Old {
				try(first, last)
			}
		}
	}
	return best
}
