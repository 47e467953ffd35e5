package packages_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/deb"
)

// universe reads lines of name, version and fields, with semicolons between them.
func universe(t *testing.T, text string) *packages.Universe {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		head, fields, _ := strings.Cut(line, ";")
		name, version, _ := strings.Cut(head, " ")
		fmt.Fprintf(&b, "Package: %s\nVersion: %s\nArchitecture: amd64\nFilename: %s.deb\nSize: 10\nSHA256: %s\n", name,
			strings.TrimSpace(version), name, strings.Repeat("ab", 32))
		for f := range strings.SplitSeq(fields, ";") {
			if f = strings.TrimSpace(f); f != "" {
				b.WriteString(f + "\n")
			}
		}
		b.WriteString("\n")
	}
	u := packages.NewUniverse(deb.Format{Arch: "amd64"})
	if err := deb.Read(strings.NewReader(b.String()), "amd64", "",
		func(p *packages.Package) error { u.Add(p); return nil }); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestSolve(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		universe string
		request  packages.Request
		want     string // names and versions of what is chosen
		assumed  string
		errs     []string // parts of the error; none is no error
	}{
		"newest, with what it depends on": {
			universe: "a 1; Depends: b\na 2; Depends: b (>= 2), c\nb 1\nb 2; Depends: a\nc 1\nd 1",
			want:     "a 2, b 2, c 1",
		},
		"a version": {universe: "a 1\na 2", request: packages.Request{Install: []string{"a=1"}}, want: "a 1"},
		"first alternative": {
			universe: "a 1; Depends: b | c\nb 1\nc 1", want: "a 1, b 1",
		},
		"second alternative, for the first cannot be had": {
			universe: "a 1; Depends: x | b | c\nb 1; Depends: y\nc 1", want: "a 1, c 1",
		},
		"an alternative that is asked for": {
			universe: "a 1; Depends: b | c\nb 1\nc 1", request: packages.Request{Install: []string{"a", "c"}},
			want: "a 1, c 1",
		},
		"virtual": {universe: "a 1; Depends: v\np1 1; Provides: v\np 1; Provides: v", want: "a 1, p 1"},
		"virtual with version": {
			universe: "a 1; Depends: v (>= 2)\np 1; Provides: v\nq 1; Provides: v (= 1)\nrr 1; Provides: v (= 3)",
			want:     "a 1, rr 1",
		},
		"older version for the sake of another": {
			universe: "a 1; Depends: b, c\nb 2\nb 1\nc 1; Depends: b (= 1)", want: "a 1, b 1, c 1",
		},
		"base is assumed": {
			universe: "a 1; Depends: e, r (>= 1), x | e\ne 1; Essential: yes; Depends: f\nr 1; Priority: required\nf 1",
			want:     "a 1", assumed: "e r",
		},
		"base in a certain version is not": {
			universe: "a 1; Depends: e (= 1)\ne 1; Essential: yes", want: "a 1, e 1",
		},
		"full": {
			universe: "a 1; Depends: e\ne 1; Essential: yes; Depends: f\nf 1",
			request:  packages.Request{Install: []string{"a"}, Full: true}, want: "a 1, e 1, f 1",
		},
		"recommended": {
			universe: "a 1; Recommends: b, x\nb 1", request: packages.Request{Install: []string{"a"}, Recommends: true},
			want: "a 1, b 1",
		},
		"not recommended": {universe: "a 1; Recommends: b\nb 1", want: "a 1"},
		"conflict avoided": {
			universe: "a 1; Depends: b | c; Conflicts: b\nb 1\nc 1", want: "a 1, c 1",
		},
		"one of several that provide the same": {universe: "a 1; Provides: v; Conflicts: v", want: "a 1"},
		"conflict": {
			universe: "a 1; Breaks: b (<< 2)\nb 1", request: packages.Request{Install: []string{"a", "b"}},
			errs: []string{"b: a conflicts with b, because of b (< 2)", "entry of its own"},
		},
		"all that is wrong": {
			universe: "conntrack 1; Depends: lib (>= 2)\nlib 1; Depends: nothing\nsocat 1; Depends: mid\nmid 1; Depends: nothing",
			request:  packages.Request{Install: []string{"conntrak", "conntrack", "socat", "socat=9"}},
			errs: []string{
				"no package conntrak; did you mean conntrack?",
				"conntrack: nothing in the repositories provides lib (>= 2) (needed by conntrack); there is lib 1",
				"socat: nothing in the repositories provides nothing (needed by socat -> mid)",
				"socat (= 9): no such version; available is 1",
			},
		},
		"another architecture": {universe: "a 1; Depends: b:i386\nb 1", errs: []string{"provides b:i386"}},
		"bad metadata":         {universe: "a 1; Depends: b (>= ", errs: []string{"bad metadata of a 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.request.Install == nil {
				c.request.Install = []string{"a"}
			}
			got, err := universe(t, c.universe).Solve(c.request)
			for _, want := range c.errs {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error\n%v\nwant %q", err, want)
				}
			}
			if len(c.errs) > 0 {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range got.Packages {
				names = append(names, p.Name+" "+p.Version)
			}
			if text := strings.Join(names, ", "); text != c.want || strings.Join(got.Assumed, " ") != c.assumed ||
				got.Size() != int64(10*len(names)) {
				t.Errorf("%s, assumed %s, want %s and %s", text, got.Assumed, c.want, c.assumed)
			}
		})
	}
}
