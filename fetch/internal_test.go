package fetch

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/helmindex"
	"github.com/kkbundle/kkbundle/fetch/upstream"
)

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestFindChecksum(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ text, want, says string }{
		"bare":             {sumA, sumA, ""},
		"bare, upper case": {strings.ToUpper(sumA) + "\r\n", sumA, ""},
		"byte order mark":  {"\ufeff" + sumA + "\n", sumA, ""},
		"from a pipe":      {sumA + "  -\n", sumA, ""},
		"two spaces":       {sumA + "  f.tgz\n", sumA, ""},
		"asterisk":         {sumA + " *f.tgz\n", sumA, ""},
		"tab":              {sumA + "\tf.tgz\n", sumA, ""},
		"with folder":      {sumA + "  ./_output/release/f.tgz\n", sumA, ""},
		"bsd":              {"SHA512 (f.tgz) = " + sumA + sumA + "\nSHA256 (f.tgz) = " + sumA + "\n", sumA, ""},
		"many":             {sumB + "  g.tgz\n" + sumA + "  f.tgz\n" + sumB + "  f.tgz.asc\n", sumA, ""},
		"longer path wins": {sumB + "  arm64/f.tgz\n" + sumA + "  amd64/f.tgz\n", sumA, ""},
		"twice the same":   {sumA + "  f.tgz\n" + sumA + " *f.tgz\n", sumA, ""},
		"comments":         {"# release 1\n\n" + sumA + "  f.tgz\n", sumA, ""},
		"sha512 beside":    {sumB + sumB + "  f.tgz\n" + sumA + "  f.tgz\n", sumA, ""},
		"contradiction":    {sumA + "  f.tgz\n" + sumB + "  f.tgz\n", "", "different sha256"},
		"other names only": {sumA + "  g.tgz\n", "", "none for f.tgz"},
		"two bare":         {sumA + "\n" + sumB + "\n", "", "none for f.tgz"},
		"sha512 only":      {sumA + sumA + "  f.tgz\n", "", "no sha256"},
		"several hashes": {
			"f.tgz  " + sumA[:8] + "  " + sumA + "  " + sumB + "\n", "",
			"several unlabelled hashes",
		},
		"openssl":            {"SHA256(f.tgz)= " + sumA + "\n", sumA, ""},
		"openssl 3":          {"SHA2-256(dist/f.tgz)= " + sumA + "\nSHA2-512(f.tgz)= " + sumB + "\n", sumA, ""},
		"digest":             {"sha256:" + sumA + "\n", sumA, ""},
		"digest and name":    {"sha256:" + sumB + "  g.tgz\nsha256:" + sumA + "  f.tgz\n", sumA, ""},
		"bsd with a hyphen":  {"MD5 (f.tgz) = 00\nSHA-256 (f.tgz) = " + sumA + "\n", sumA, ""},
		"a page":             {"<html>not found</html>", "", "no sha256"},
		"empty":              {"", "", "no sha256"},
		"name is a traverse": {sumA + "  ../../f.tgz\n", sumA, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := findChecksum([]byte(c.text), "/v1/amd64/f.tgz")
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("got %q, %v, want an error with %q", got, err, c.says)
				}
				return
			}
			if err != nil || got.Encoded() != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func FuzzFindChecksum(f *testing.F) {
	f.Add([]byte(sumA+"  f.tgz\n"), "/f.tgz")
	f.Add([]byte("SHA256 (f.tgz) = "+sumA), "/x/f.tgz")
	f.Add([]byte("\\"+sumA+" *a/b\\c\n"), "/c")
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		d, err := findChecksum(data, path)
		if err != nil {
			return
		}
		if upstream.CheckDigest(d) != nil {
			t.Errorf("%q is no digest", d)
		}
		if !strings.Contains(strings.ToLower(string(data)), d.Encoded()) {
			t.Errorf("%s is not in the file", d)
		}
	})
}

func TestPickVersion(t *testing.T) {
	t.Parallel()
	list := []string{
		"4.13.9", "4.14.0", "4.14.10", "4.14.9", "4.15.0-rc.1", "v5.0.0", "nonsense", "4.14.10+build.1",
		"5.1.0-beta",
	}
	for want, exp := range map[string]string{
		"4.14.x": "4.14.10", "4.14.9": "4.14.9", "": "v5.0.0", "~4.13.0": "4.13.9", ">=4.13 <4.14.1": "4.14.0",
		"4.15.0-rc.1": "4.15.0-rc.1", "^4": "4.14.10", "5.0.0": "v5.0.0", ">5.0.0-0": "5.1.0-beta",
	} {
		got, err := pickVersion(list, want, func(s string) string { return s })
		if err != nil || got != exp {
			t.Errorf("%q: got %q, %v, want %q", want, got, err, exp)
		}
	}
	for want, says := range map[string]string{
		"6.x": "newest are 5.1.0-beta, v5.0.0, 4.15.0-rc.1",
		"one": "neither a version nor a range", "4.15.x": "newest",
	} {
		if _, err := pickVersion(list, want, func(s string) string { return s }); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want %q", want, err, says)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"https://h/charts", "app-1.tgz", "https://h/charts/app-1.tgz"},
		{"https://h/charts/", "sub/app-1.tgz", "https://h/charts/sub/app-1.tgz"},
		{"https://h/charts", "/app-1.tgz", "https://h/app-1.tgz"},
		{"https://h/charts", "https://x/app-1.tgz?a=b", "https://x/app-1.tgz?a=b"},
	} {
		got, err := archiveAddress(helmindex.Version{URLs: []string{c[1]}}, c[0])
		if err != nil || got != c[2] {
			t.Errorf("%v: got %s, %v", c, got, err)
		}
	}
}

func TestAddressWithSecret(t *testing.T) {
	t.Parallel()
	_, err := archiveAddress(helmindex.Version{URLs: []string{"https://bucket.example/app-1.tgz?X-Amz-Signature=s3cret"}}, "https://h/charts")
	if err == nil || !strings.Contains(err.Error(), "X-Amz-Signature") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string][2]string{
		"docker.io/library/nginx:1.29":            {"docker.io/library/nginx", "1.29"},
		"r:5000/a/b":                              {"r:5000/a/b", ""},
		"r:5000/a/b:v1@sha256:" + sumA:            {"r:5000/a/b", "v1"},
		"registry.k8s.io/pause:3.10.1":            {"registry.k8s.io/pause", "3.10.1"},
		"registry.k8s.io/coredns/coredns:v1.12.1": {"registry.k8s.io/coredns/coredns", "v1.12.1"},
	} {
		if got := [2]string{imageName(ref), imageVersion(ref)}; got != want {
			t.Errorf("%s: got %v, want %v", ref, got, want)
		}
	}
}

// TestErrorsByCause: items of a host that cannot be reached are one cause with one remedy.
func TestErrorsByCause(t *testing.T) {
	t.Parallel()
	peers, err := upstream.NewNetwork(nil, "", upstream.NewHosts(), nil).Peers("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	_, refused := peers[0].WebClient().Get("https://localhost:1")
	gone, ok := errors.AsType[*upstream.UnreachableError](refused)
	if !ok {
		t.Fatal(refused)
	}
	e := &Errors{Items: 30}
	for i := range 7 {
		e.Failed = append(e.Failed, &ItemError{
			Kind: "file", Ref: fmt.Sprintf("https://dl.example/%d", i),
			Platform: "linux/amd64", Err: fmt.Errorf("ask dl.example: %w (tried 3 times)", gone),
		})
	}
	e.Failed = append(e.Failed, &ItemError{Kind: "image", Ref: "a:1", Err: errors.New("a:1: 404 Not Found")},
		&ItemError{Kind: "image", Ref: "b:1", Err: errors.New("not signed")})
	got := e.Error()
	want := "9 of 30 items could not be fetched:\n  7 items: " + gone.Error() + `
    file https://dl.example/0 (linux/amd64)
    file https://dl.example/1 (linux/amd64)
    file https://dl.example/2 (linux/amd64)
    file https://dl.example/3 (linux/amd64)
    file https://dl.example/4 (linux/amd64)
    and 2 more
  image a:1: 404 Not Found
  image b:1: not signed`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
