package logins

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

const (
	maxFile = 4 << 20     // bytes of a configuration
	hub     = "docker.io" // Docker Hub, under any of its names
)

// A Keychain finds the logins that this machine keeps. It implements authn.Keychain and authn.ContextKeychain, and is
// safe for concurrent use.
//
// The first file with a login of the registry wins: config.json in $DOCKER_CONFIG or ~/.docker, $REGISTRY_AUTH_FILE,
// containers/auth.json in $XDG_RUNTIME_DIR, and in $XDG_CONFIG_HOME or ~/.config. In a file, a login of a path within
// the registry goes first, the longest path before others; then the credential helper's; then the registry's own.
type Keychain struct {
	log *slog.Logger

	mu   sync.Mutex
	lost map[question]error // that are not asked again, since the helper does not work
}

// A question is a server that a helper is asked for; "" stands for all.
type question struct {
	helper Helper
	server string
}

// New returns the machine's Keychain. What a helper does not answer is logged once.
func New(log *slog.Logger) *Keychain {
	return &Keychain{log: cmp.Or(log, slog.New(slog.DiscardHandler)), lost: map[question]error{}}
}

// Resolve implements authn.Keychain.
func (k *Keychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	return k.ResolveContext(context.Background(), target)
}

// ResolveContext implements authn.ContextKeychain. Without a login it returns authn.Anonymous, or, if a helper does
// not work, an authenticator that explains this through Unread: what the registry gives to everybody needs no login.
func (k *Keychain) ResolveContext(ctx context.Context, target authn.Resource) (authn.Authenticator, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := location(target.String())
	var unread error
	for _, path := range files() {
		f, err := read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // HOME=/dev/null, as services have it
			continue
		case errors.Is(err, fs.ErrPermission): // of another user, as XDG_RUNTIME_DIR after su
			unread = cmp.Or(unread, err)
			continue
		case err != nil:
			return nil, err
		}
		config, err := k.login(ctx, f, at)
		switch {
		case err == nil:
			return authn.FromConfig(config), nil
		case !errors.Is(err, errNone):
			unread = cmp.Or(unread, err)
		}
	}
	if unread != nil && ctx.Err() == nil {
		return anonymous{unread}, nil
	}
	return authn.Anonymous, context.Cause(ctx)
}

// anonymous stands in for a login that could not be read.
type anonymous struct{ unread error }

// Authorization implements authn.Authenticator.
func (anonymous) Authorization() (*authn.AuthConfig, error) { return &authn.AuthConfig{}, nil }

// Unread returns why a login that the machine keeps could not be read; nil if there is none, or it could.
func Unread(a authn.Authenticator) error {
	if a, ok := a.(anonymous); ok {
		return a.unread
	}
	return nil
}

// login looks into one file; errNone means that it has no login.
func (k *Keychain) login(ctx context.Context, f *file, at string) (authn.AuthConfig, error) {
	key, own := f.entry(at)
	if own != nil && strings.Contains(key, "/") {
		return own.config(f.path)
	}
	err := errNone
	if h := f.helper(at); h != "" {
		var config authn.AuthConfig
		if config, err = k.ask(ctx, h, f.path, at); err == nil {
			return config, nil
		}
	}
	if own != nil {
		return own.config(f.path)
	}
	return authn.AuthConfig{}, err
}

// ask runs a helper, unless it did not work before: at all, or for this server. One that serves several clouds fails
// for those that it has no account of.
func (k *Keychain) ask(ctx context.Context, h Helper, path, at string) (authn.AuthConfig, error) {
	server, _, _ := strings.Cut(at, "/")
	if server == hub {
		server = authn.DefaultAuthKey
	}
	if err := cmp.Or(k.lost[question{h, ""}], k.lost[question{h, server}]); err != nil {
		return authn.AuthConfig{}, err
	}
	config, err := h.get(ctx, server)
	if err == nil || errors.Is(err, errNone) || ctx.Err() != nil {
		return config, err
	}
	lost := question{h, server}
	if _, dead := errors.AsType[deadError](err); dead {
		lost.server = ""
	}
	err = fmt.Errorf("the credential helper of %s (credsStore, credHelpers) does not work: %w", path, err)
	k.lost[lost] = err
	k.log.WarnContext(ctx, "no login from a credential helper; going on without", "error", err)
	return authn.AuthConfig{}, err
}

// files returns the places of logins, in order.
func files() (paths []string) {
	home, _ := os.UserHomeDir() // without one only the variables count
	below := func(dir, fallback, path string) {
		if dir == "" && fallback != "" && home != "" {
			dir = filepath.Join(home, fallback)
		}
		if dir != "" {
			paths = append(paths, filepath.Join(dir, path))
		}
	}
	below(os.Getenv("DOCKER_CONFIG"), ".docker", "config.json")
	if path := os.Getenv("REGISTRY_AUTH_FILE"); path != "" {
		paths = append(paths, path)
	}
	below(os.Getenv("XDG_RUNTIME_DIR"), "", "containers/auth.json")
	below(os.Getenv("XDG_CONFIG_HOME"), ".config", "containers/auth.json")
	return paths
}

// A file is docker's config.json or podman's auth.json (docker's documentation, "Credential stores";
// containers-auth.json(5)).
type file struct {
	path    string
	Auths   map[string]entry  `json:"auths"`
	Store   Helper            `json:"credsStore"`
	Helpers map[string]Helper `json:"credHelpers"`
}

type entry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func read(path string) (*file, error) {
	in, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("logins of registries: %w", err)
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil || len(data) > maxFile {
		return nil, fmt.Errorf("logins of registries: %s: not read, or more than %d bytes: %w", path, maxFile,
			cmp.Or(err, io.ErrShortBuffer))
	}
	f := &file{path: path}
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) // editors of Windows begin with this mark
	if len(data) > 0 && json.Unmarshal(data, f) != nil {                   // its error may repeat a password
		return nil, fmt.Errorf("logins of registries: %s is not a configuration of docker or podman: check that it is JSON", path)
	}
	return f, nil
}

// entry returns the login of the longest path at or above a place, and that path; nil for none. Entries without a
// login, which docker writes beside its helpers, do not count.
func (f *file) entry(at string) (key string, found *entry) {
	for _, name := range slices.Sorted(maps.Keys(f.Auths)) {
		place, e := location(name), f.Auths[name]
		if e == (entry{}) || found != nil && len(place) <= len(key) {
			continue
		}
		if at == place || strings.HasPrefix(at, place+"/") {
			key, found = place, &e
		}
	}
	return key, found
}

// helper returns the helper of the registry at a place, "" for none.
func (f *file) helper(at string) Helper {
	host, _, _ := strings.Cut(at, "/")
	for _, name := range slices.Sorted(maps.Keys(f.Helpers)) {
		if location(name) == host {
			return f.Helpers[name]
		}
	}
	return f.Store
}

// config returns the login of an entry.
func (e *entry) config(path string) (authn.AuthConfig, error) {
	c := authn.AuthConfig{
		Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken,
		RegistryToken: e.RegistryToken,
	}
	if e.Auth == "" {
		return c, nil
	}
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(e.Auth), "="))
	user, password, ok := strings.Cut(string(text), ":")
	if err != nil || !ok {
		return c, fmt.Errorf("logins of registries: %s has an auth that is not user:password in base64: log in again",
			path)
	}
	c.Username, c.Password = user, strings.TrimRight(password, "\x00\r\n")
	return c, nil
}

// location returns a registry or a path within one as this package compares them: without scheme and API version, and
// with one name for Docker Hub, whose configuration is kept as https://index.docker.io/v1/.
func location(key string) string {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	key = strings.TrimRight(key, "/")
	for _, version := range []string{"/v1", "/v2"} {
		key = strings.TrimSuffix(key, version)
	}
	host, path, _ := strings.Cut(key, "/")
	switch host = strings.ToLower(host); host {
	case name.DefaultRegistry, "registry-1.docker.io":
		host = hub
	}
	if path == "" {
		return host
	}
	return host + "/" + path
}
