package fetch

import (
	"slices"

	"github.com/kkbundle/kkbundle/manifest"
)

// vouches returns who vouches for a published digest: upstream, if only upstream's own server can answer
// and is asked over TLS. It does not depend on which server answered this time, so that a lock can be reproduced.
func vouches(servers []*peer) manifest.Verification {
	if len(servers) == 0 || slices.ContainsFunc(servers, func(p *peer) bool { return p.isMirror() || p.plain }) {
		return manifest.VerifiedMirror
	}
	return manifest.VerifiedUpstream
}

// vouchesFor returns who vouches for a file of checksums or an index at an address.
func (w *webFiles) vouchesFor(address string) (manifest.Verification, error) {
	asked, replaced := w.override(address)
	places, err := w.network.route(asked)
	if err != nil {
		return "", err
	}
	if replaced {
		return manifest.VerifiedMirror, nil
	}
	var servers []*peer
	for _, p := range places {
		servers = append(servers, p.peer)
	}
	return vouches(servers), nil
}
