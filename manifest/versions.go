package manifest

import (
	"cmp"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// CompareVersions orders versions as semver does where both are such, and else as text.
func CompareVersions(a, b string) int {
	x, err1 := semver.NewVersion(a)
	y, err2 := semver.NewVersion(b)
	if err1 == nil && err2 == nil {
		return cmp.Or(x.Compare(y), strings.Compare(a, b))
	}
	return strings.Compare(a, b)
}
