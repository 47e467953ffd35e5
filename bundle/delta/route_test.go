package delta_test

import (
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/delta"
)

func TestRoute(t *testing.T) {
	t.Parallel()
	const v1, v2, v3, v4 = digest.Digest("v1"), digest.Digest("v2"), digest.Digest("v3"), digest.Digest("v4")
	a, b, c := delta.Offer{Old: v1, New: v2, Size: 10}, delta.Offer{Old: v2, New: v3, Size: 20},
		delta.Offer{Old: v1, New: v3, Size: 40}
	for name, test := range map[string]struct {
		have   []digest.Digest
		offers []delta.Offer
		limit  int64
		want   []delta.Offer
	}{
		"one":                        {[]digest.Digest{v2}, []delta.Offer{b}, 21, []delta.Offer{b}},
		"not smaller than the blobs": {[]digest.Digest{v2}, []delta.Offer{b}, 20, nil},
		"two are smaller than one":   {[]digest.Digest{v1}, []delta.Offer{c, b, a}, 100, []delta.Offer{a, b}},
		"one is smaller than two": {
			[]digest.Digest{v1},
			[]delta.Offer{{Old: v1, New: v3, Size: 29}, b, a},
			100,
			[]delta.Offer{{Old: v1, New: v3, Size: 29}},
		},
		"the nearest bundle at hand": {[]digest.Digest{v1, v2}, []delta.Offer{a, b, c}, 100, []delta.Offer{b}},
		"the smaller of two with the same base": {
			[]digest.Digest{v2},
			[]delta.Offer{{Old: v2, New: v3, Size: 30}, b},
			100,
			[]delta.Offer{b},
		},
		"no base at hand":      {[]digest.Digest{v4}, []delta.Offer{a, b, c}, 100, nil},
		"another result":       {[]digest.Digest{v1}, []delta.Offer{a}, 100, nil},
		"three in a row":       {[]digest.Digest{v4}, []delta.Offer{{Old: v4, New: v1, Size: 1}, a, b}, 100, nil},
		"the sum is the limit": {[]digest.Digest{v1}, []delta.Offer{a, b}, 30, nil},
		"sizes that overflow": {[]digest.Digest{v1}, []delta.Offer{
			{Old: v1, New: v2, Size: 1 << 62},
			{Old: v2, New: v3, Size: 1 << 62},
		}, 1<<63 - 1, nil},
		"a size below zero": {[]digest.Digest{v2}, []delta.Offer{{Old: v2, New: v3, Size: -1}}, 100, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := delta.Route(test.have, v3, test.offers, test.limit); !slices.Equal(got, test.want) {
				t.Errorf("took %v, want %v", got, test.want)
			}
		})
	}
}
