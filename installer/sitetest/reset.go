//go:build linux

package sitetest

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// Dialing makes Options.Dial connect to the site's hosts, but for one.
func (s *Site) Dialing(lost string) {
	s.Options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
		if h.Name == lost {
			return nil, &host.UnreachableError{
				Host: h.Name, Address: "10.0.0.4:22",
				Err: errors.New("no route to host"),
			}
		}
		return s.Hosts[h.Name], nil
	}
}
