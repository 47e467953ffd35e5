package mirror

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

const dockerHub = "docker.io"

// docker configures Docker Engine, which supports mirrors of Docker Hub only, and requests names without an upstream
// host. https://docs.docker.com/docker-hub/image-library/mirror/ and
// https://docs.docker.com/engine/security/certificates/
func docker(r Registry, upstreams []string) (Configuration, error) {
	var c Configuration
	if len(r.CA) > 0 {
		c.Files = append(c.Files, caFile(r, path.Join("/etc/docker/certs.d", r.Host, "ca.crt")))
	}
	daemon := map[string]any{}
	hub := slices.Contains(upstreams, dockerHub)
	switch {
	case hub && r.Prefix == "":
		daemon["registry-mirrors"] = []string{r.url()}
		c.Notes = append(c.Notes,
			"Docker asks a mirror for Docker Hub's images as "+r.Host+
				"/library/NAME: push them there with --rename docker.io/library=library (and one --rename for each other namespace)",
			"Docker contacts docker.io itself if the mirror lacks an image; that cannot be disabled")
	case hub:
		c.Notes = append(c.Notes, "Docker does not support a mirror with a path ("+r.Prefix+
			"), so registry-mirrors stays unchanged")
	}
	if r.PlainHTTP {
		daemon["insecure-registries"] = []string{r.Host}
	}
	if others := slices.DeleteFunc(slices.Clone(upstreams),
		func(u string) bool { return u == dockerHub }); len(others) > 0 {
		c.Notes = append(c.Notes, "Docker does not support mirrors for "+strings.Join(others, ", ")+": pull "+
			path.Join(r.Host, r.path(others[0]))+"/... instead")
	}
	if r.Username != "" {
		c.Notes = append(c.Notes, "Docker keeps logins for each user: run docker login "+r.Host+
			"; it sends none to mirrors")
	}
	if len(daemon) == 0 {
		return c, nil
	}
	data, err := json.MarshalIndent(daemon, "", "  ")
	if err != nil {
		return c, fmt.Errorf("daemon.json: %w", err)
	}
	c.Files = append(c.Files, hostfile.File{
		Path: "/etc/docker/daemon.json", Mode: public, Data: append(data, '\n'),
		Merge: mergeJSON,
	})
	c.Notes = append(c.Notes, "Docker reads daemon.json at systemctl reload docker")
	return c, nil
}

// mergeJSON puts the lists of data's object in front of those in have.
func mergeJSON(have, data []byte, _ bool) ([]byte, error) {
	var ours map[string][]any
	if err := json.Unmarshal(data, &ours); err != nil {
		return nil, err
	}
	all := map[string]any{}
	if len(bytes.TrimSpace(have)) > 0 {
		d := json.NewDecoder(bytes.NewReader(have))
		d.UseNumber()
		if err := d.Decode(&all); err != nil || all == nil {
			return nil, fmt.Errorf("not a JSON object: %w", errors.Join(err, errNoObject))
		}
	}
	changed := false
	for _, key := range slices.Sorted(maps.Keys(ours)) {
		theirs, ok := all[key].([]any)
		if !ok && all[key] != nil {
			return nil, fmt.Errorf("%q is not a list", key)
		}
		merged := slices.Clone(ours[key])
		for _, v := range theirs {
			if !slices.Contains(merged, v) {
				merged = append(merged, v)
			}
		}
		if !slices.Equal(merged, theirs) {
			all[key], changed = merged, true
		}
	}
	if !changed {
		return have, nil
	}
	out, err := json.MarshalIndent(all, "", "  ")
	return append(out, '\n'), err
}

var errNoObject = errors.New("nothing is changed in it")
