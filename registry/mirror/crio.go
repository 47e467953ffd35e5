package mirror

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

const (
	public, private = 0o644, 0o600
	crioAuth        = "/etc/kkbundle/mirror-auth.json"
)

// crio configures CRI-O, and Podman and skopeo, which read the same files. An upstream's location is the registry, so
// the upstream is never contacted. https://github.com/containers/image/blob/main/docs/containers-registries.conf.5.md
func crio(r Registry, upstreams []string) (Configuration, error) {
	var c Configuration
	if len(r.CA) > 0 {
		c.Files = append(c.Files, caFile(r, path.Join("/etc/containers/certs.d", r.Host, "ca.crt")))
	}
	var b bytes.Buffer
	b.WriteString(hostfile.Mark + "\n")
	for _, u := range upstreams {
		fmt.Fprintf(&b, "\n[[registry]]\nprefix = %q\nlocation = %q\n", u, path.Join(r.Host, r.path(u)))
		if r.PlainHTTP {
			b.WriteString("insecure = true\n")
		}
	}
	if r.PlainHTTP {
		fmt.Fprintf(&b, "\n[[registry]]\nlocation = %q\ninsecure = true\n", r.Host)
	}
	c.Files = append(c.Files, hostfile.File{
		Path: "/etc/containers/registries.conf.d/50-kkbundle.conf", Mode: public,
		Data: b.Bytes(), Mark: hostfile.Mark,
	})
	c.Notes = append(c.Notes, "CRI-O reads the files at systemctl reload crio; other registries are contacted directly")
	if r.Username == "" {
		return c, nil
	}
	auth, err := json.MarshalIndent(map[string]map[string]map[string]string{"auths": {r.Host: {"auth": r.login()}}}, "",
		"  ")
	if err != nil {
		return c, fmt.Errorf("%s: %w", crioAuth, err)
	}
	c.Files = append(c.Files,
		hostfile.File{
			Path: crioAuth, Mode: private, Data: append(auth, '\n'), Mark: "{\n  \"auths\": {\n",
			Secrecy: hostfile.Logins,
		},
		hostfile.File{
			Path: "/etc/crio/crio.conf.d/50-kkbundle.conf", Mode: public, Mark: hostfile.Mark,
			Data: fmt.Appendf(nil, "%s\n[crio.image]\nglobal_auth_file = %q\n", hostfile.Mark, crioAuth),
		})
	c.Notes = append(c.Notes,
		"the login is only for CRI-O, which reads it at systemctl restart crio; podman has its own (podman login)")
	return c, nil
}
