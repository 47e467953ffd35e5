package fetch

import (
	"slices"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// vouches returns who vouches for a published digest: upstream, if only upstream's own server can answer
// and is asked over TLS. It does not depend on which server answered this time, so that a lock can be reproduced.
func vouches(servers []*upstream.Peer) manifest.Verification {
	another := func(p *upstream.Peer) bool { return p.IsMirror() || p.Plain }
	if len(servers) == 0 || slices.ContainsFunc(servers, another) {
		return manifest.VerifiedMirror
	}
	return manifest.VerifiedUpstream
}

// vouchesFor returns who vouches for a file of checksums or an index at an address.
func (w *webFiles) vouchesFor(address string) (manifest.Verification, error) {
	asked, replaced := w.override(address)
	places, err := w.network.Route(asked)
	if err != nil {
		return "", err
	}
	if replaced {
		return manifest.VerifiedMirror, nil
	}
	var servers []*upstream.Peer
	for _, p := range places {
		servers = append(servers, p.Peer)
	}
	return vouches(servers), nil
}
