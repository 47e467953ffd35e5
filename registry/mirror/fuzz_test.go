package mirror_test

import (
	"bytes"
	"testing"

	"github.com/kkbundle/kkbundle/registry/mirror"
)

// FuzzMerge puts ours into whatever others wrote: it is refused, or there, and the second time nothing changes.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"registry-mirrors":["https://other"],"x":1e400}`,
		"mirrors:\n  docker.io: {endpoint: [a]}\n", "mirrors: &a {b: *a}", "a: 1\na: 2\n",
		"mirrors: &m {docker.io: &d {}}\nconfigs: *m\n", "--- {}\n--- {}\n", "mirrors:\n", "mirrors: {\"*\": {}}\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	r := mirror.Registry{Host: "r:5000", PlainHTTP: true, Username: "u", Password: "p"}
	f.Fuzz(func(t *testing.T, have []byte, force bool) {
		for _, runtime := range []mirror.Runtime{mirror.RuntimeDocker, mirror.RuntimeK3s} {
			c, err := mirror.Configure(runtime, r, []string{"docker.io"})
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range c.Files {
				if file.Merge == nil {
					continue
				}
				merged, err := file.Merge(have, file.Data, force)
				if err != nil {
					continue
				}
				again, err := file.Merge(merged, file.Data, force)
				if err != nil || !bytes.Equal(again, merged) {
					t.Errorf("%s: %q became %q, then %q, %v", runtime, have, merged, again, err)
				}
			}
		}
	})
}
