package closure_test

import (
	"fmt"

	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/proof/closure"
)

// Compare needs with the items of a bundle.
func ExampleCheck() {
	needs := []closure.Need{
		{
			Kind: "image", Ref: "docker.io/library/nginx:1.29",
			By: closure.User{Place: discover.Place{File: "web.yaml", Object: "Pod web"}},
		},
		{
			Kind: "image", Ref: "docker.io/library/redis:8.2",
			By: closure.User{Place: discover.Place{File: "cache.yaml", Object: "Pod cache"}},
		},
	}
	r, err := closure.Check(needs, []closure.Item{{Kind: "image", Ref: "docker.io/library/nginx:1.29"}})
	fmt.Println(r.Items[0].Ref, "needed by", r.Items[0].NeededBy)
	fmt.Println(err)
	// Output:
	// docker.io/library/nginx:1.29 needed by [web.yaml: Pod web]
	// image docker.io/library/redis:8.2 is missing: cache.yaml: Pod cache needs it
}
