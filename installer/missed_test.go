//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestMissed has install of all hosts come to a cluster of which one does not answer.
func TestMissed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members, down string
		want          []string // in the message or the hint; "!" before what must not be
	}{
		"a control plane": {
			"cp1 cp2 cp3 node1 node2", "cp1",
			[]string{
				"cp1 is down", "nodes of cluster site, which is running: cp1", "nodes delete --unreachable cp1,",
				"--limit cp2,cp3,node1,node2", "!image_registry", "!--without",
			},
		},
		"a worker": {
			"cp1 cp2 cp3 node1 node2", "node2", []string{
				"nodes delete --unreachable node2,",
				"--limit cp1,cp2,cp3,node1 ", "leave them as they are until then: --without node2",
			},
		},
		"the registry's host, which is a node": {
			"cp1 cp2 cp3 node1 node2", "node1", []string{
				"pull from: node1", "another host under image_registry",
				"!nodes delete", "!--limit",
			},
		},
		"one that is to become a node": {"cp1 cp2 cp3 node1", "node2", []string{"node2 is down", "!cluster"}},
		"there is no cluster yet":      {"", "node2", []string{"node2 is down", "!cluster"}},
		"no control plane is left": {
			"cp1 cp2 cp3 node1", "cp1 cp2 cp3",
			[]string{"cp1, cp2, cp3: the host is down", "!nodes delete"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
			members := strings.Fields(c.members)
			s.Join(t, members...)
			for _, h := range s.Hosts {
				h.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
					items := []any{}
					for _, name := range members {
						items = append(items, kube.Document{"metadata": kube.Document{"name": name}})
					}
					return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
				})
			}
			s.Options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
			s.Options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
				if strings.Contains(c.down+" ", h.Name+" ") {
					return nil, &host.UnreachableError{
						Host: h.Name, Address: "10.0.0.1:22",
						Err: errors.New(h.Name + " is down"),
					}
				}
				return s.Hosts[h.Name], nil
			}
			r, err := begin.NewFitting(s.Options, engine.Installing())
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Start(t.Context(), func(context.Context) error {
				t.Error("it went on without the host")
				return nil
			})
			var unreachable *host.UnreachableError
			if !errors.As(err, &unreachable) {
				t.Fatalf("got %v", err)
			}
			said := err.Error()
			var missed *engine.UnreachedError
			if errors.As(err, &missed) {
				said += "\n" + missed.Hint()
			}
			for _, want := range c.want {
				unwanted, not := strings.CutPrefix(want, "!")
				if strings.Contains(said, unwanted) == not {
					t.Errorf("%s\nis to say: %s", said, want)
				}
			}
		})
	}
}
