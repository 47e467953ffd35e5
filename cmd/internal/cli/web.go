package cli

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/download"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web/dial"
)

// isWeb reports whether path is the address of a file on a web server.
func isWeb(path string) bool {
	return strings.HasPrefix(path, "https://") || strings.HasPrefix(path, "http://")
}

// webClient returns a client for the server at address, and the address without a login.
func (f *loginFlags) webClient(g *globals, address string) (*download.Client, string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, "", usage.Errorf("%s is no address of a file: want https://HOST/PATH/NAME.kkb",
			download.Shown(address))
	}
	switch {
	case u.User != nil:
		return nil, "", usage.Errorf("the address of %s has a login: give --username and --password-stdin instead",
			plain.Line(u.Host))
	case u.Scheme == "http" && !f.plainHTTP:
		return nil, "", usage.Errorf("%s is plain HTTP: allow it with --plain-http if you trust the network",
			download.Shown(address))
	}
	if err := f.check(); err != nil {
		return nil, "", err
	}
	t, err := dial.NewTransport(dial.Files{CA: f.ca, Cert: f.cert, Key: f.key})
	if err != nil {
		return nil, "", err
	}
	keys, err := f.keychain(g)
	if err != nil {
		return nil, "", err
	}
	user, password := "", ""
	if l, ok := keys.(login); ok {
		config, err := l.auth.Authorization()
		if err != nil {
			return nil, "", err
		}
		user, password = config.Username, config.Password
	}
	client := download.NewClient(t, user, password)
	client.Logger = g.Logger()
	return client, u.String(), nil
}

// openWeb opens a bundle on a web server. Only its two ends and the manifests are read, by ranges. The signature is
// checked as for a file.
func (g *globals) openWeb(ctx context.Context, address string, f loginFlags) (*bundle.Reader, error) {
	c, address, err := f.webClient(g, address)
	if err != nil {
		return nil, err
	}
	remote, err := c.Open(ctx, address)
	if err != nil {
		return nil, err
	}
	r, err := bundle.NewReaderWith(remote, remote.Size, g.keysFor(download.Shown(address)))
	if err != nil {
		return nil, err
	}
	n := signaturesOf{
		name: download.Shown(address), none: "there is no " + sidecarSuffix[1:] + " beside it",
		list: func() ([]string, error) {
			return g.trust.signatures, nil
		}, read: func(file string) ([]byte, error) { return os.ReadFile(file) },
	}
	if len(g.trust.signatures) == 0 {
		data, err := c.Small(ctx, webSidecar(address), published.MaxSignatureSize)
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		if data != nil {
			n.list = func() ([]string, error) { return []string{download.Shown(webSidecar(address))}, nil }
			n.read = func(string) ([]byte, error) { return data, nil }
		}
	}
	if _, err := g.checkSignatures(n, r.Index()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// webSidecar returns the address of a bundle's signature.
func webSidecar(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, bundle.EncryptedSuffix)+sidecarSuffix, ""
	return u.String()
}

// openRead opens a bundle for looking at it: also on a web server.
func (g *globals) openRead(ctx context.Context, path string, f loginFlags) (*bundle.Reader, error) {
	if isWeb(path) {
		return g.openWeb(ctx, path, f)
	}
	return g.openAny(ctx, path)
}

// webResult is the JSON output of a pull from a web server.
type webResult struct {
	Version int           `json:"version"` // 1
	Path    string        `json:"path"`
	Digest  digest.Digest `json:"digest"`
	Size    int64         `json:"size"`    // bytes of the bundle
	Fetched int64         `json:"fetched"` // bytes of the transferred files
	Parts   int           `json:"parts,omitempty"`
	// address of the delta that was fetched in place of the bundle
	Delta     string         `json:"delta,omitempty"`
	Signature string         `json:"signature,omitempty"` // path
	Duration  plain.Duration `json:"duration"`
}

// runPullWeb pulls a bundle from a web server. The bundle gets its name once every byte and its signature are checked.
func runPullWeb(ctx context.Context, g *globals, address string, o pullOptions) (err error) {
	start := time.Now()
	if len(o.items)+len(o.platforms) > 0 || o.split.Bytes > 0 || o.levelGiven {
		return usage.Errorf("a bundle of a web server is pulled as it is: --item, --platform, --split and --level are for bundles in a registry")
	}
	c, address, err := o.webClient(g, address)
	if err != nil {
		return err
	}
	options := download.Options{URL: address}
	if options.Output, err = webOutput(o.output, address); err != nil {
		return err
	}
	if _, err := o.overwrite.bundle(g, options.Output, func(*bundle.Reader) string { return "" }); err != nil {
		return err // compared when it is known, see Check
	}
	for _, path := range o.haves {
		r, err := g.openBundle(path)
		if err != nil {
			return errors.Join(err, closeAll(options.Have))
		}
		options.Have = append(options.Have, bundle.From{Name: path, Reader: r})
	}
	defer func() { err = errors.Join(err, closeAll(options.Have)) }()
	out := webResult{Version: 1}
	progress, stop := g.Phases()
	options.Progress = progress
	options.Check = func(ctx context.Context, path string) error {
		report, err := verify(ctx, g, path, bundle.VerifyOptions{
			Progress: func(done, total int64) { progress("verify", done, total) },
			Accept: func(x bundle.Index) error {
				_, err := g.checkTrust(path, x)
				return err
			},
		}, func(*bundle.Catalog) error { return nil })
		out.Digest, out.Size = report.Digest, report.Size
		if err != nil {
			return err
		}
		return o.overwrite.pulled(g, path, options.Output, report.Digest)
	}
	r, err := c.Pull(ctx, options)
	stop()
	if err != nil {
		return err
	}
	out.Path, out.Fetched, out.Parts, out.Delta, out.Signature = r.Path, r.Bytes, r.Parts, r.Delta, r.Signature
	took := time.Since(start)
	out.Duration = plain.Duration(took)
	if g.JSON {
		return g.PrintJSON(out)
	}
	if out.Delta != "" {
		g.Note("made from the delta %s", plain.Line(out.Delta))
	}
	g.Note("%s: %s, %s fetched, in %s", out.Path, plain.Size(out.Size), plain.Size(out.Fetched),
		took.Round(100*time.Millisecond))
	return g.Result("%s", out.Digest)
}

// webOutput returns the path to write: -o, a file or a directory, or the name at the end of the address.
func webOutput(output, address string) (string, error) {
	if output == standardStream {
		return "", usage.Errorf("pull writes a file: name it with -o")
	}
	if info, err := os.Stat(output); output != "" && (err != nil || !info.IsDir()) {
		return output, nil
	}
	name, err := download.Name(address)
	if err == nil && name != plain.Line(name) {
		err = errors.New("the name at its end is not valid as a file name: name a file with -o")
	}
	if err != nil {
		return "", usage.Errorf("%s: %w", download.Shown(address), err)
	}
	return filepath.Join(output, name), nil
}
