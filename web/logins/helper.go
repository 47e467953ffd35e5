package logins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	helperLimit = 30 * time.Second // helpers answer within seconds; longer ones wait for somebody
	maxAnswer   = 1 << 20          // bytes of a helper's answer; a token has some KB
	maxProblem  = 300              // characters of a helper's message
)

// notFound is the answer of helpers without a login (docker-credential-helpers, credentials.ErrCredentialsNotFound).
const notFound = "credentials not found in native keychain"

// errNone means that a helper has no login of the server.
var errNone = errors.New("no login")

// A deadError says why a helper answers for no server.
type deadError string

func (e deadError) Error() string { return string(e) }

// A Helper is a credential helper: the part of its program's name after docker-credential-.
type Helper string

// String returns the name of the helper's program.
func (h Helper) String() string { return "docker-credential-" + string(h) }

// helperLogin is what helpers print and read.
type helperLogin struct {
	ServerURL string
	Username  string
	Secret    string
}

// get returns the login of a server; errNone if the helper has none.
func (h Helper) get(ctx context.Context, server string) (authn.AuthConfig, error) {
	out, err := h.run(ctx, "get", []byte(server))
	if err != nil {
		return authn.AuthConfig{}, err
	}
	var l helperLogin
	if json.Unmarshal(out, &l) != nil { // its error repeats the text
		return authn.AuthConfig{}, fmt.Errorf("%s printed no login", h)
	}
	if l.Username == "<token>" { // an identity token, by docker's protocol
		return authn.AuthConfig{IdentityToken: l.Secret}, nil
	}
	return authn.AuthConfig{Username: l.Username, Password: l.Secret}, nil
}

// Store keeps the login of a server.
func (h Helper) Store(ctx context.Context, server, username, password string) error {
	text, err := json.Marshal(helperLogin{server, username, password})
	if err != nil {
		return fmt.Errorf("%s: %w", h, err)
	}
	_, err = h.run(ctx, "store", text)
	return err
}

// Erase removes the login of a server.
func (h Helper) Erase(ctx context.Context, server string) error {
	_, err := h.run(ctx, "erase", []byte(server))
	return err
}

// Has reports whether the helper has a login of a server.
func (h Helper) Has(ctx context.Context, server string) (bool, error) {
	_, err := h.get(ctx, server)
	if errors.Is(err, errNone) {
		return false, nil
	}
	return err == nil, err
}

func (h Helper) run(ctx context.Context, verb string, input []byte) ([]byte, error) {
	if strings.ContainsAny(string(h), `/\`) {
		return nil, deadError(fmt.Sprintf("%q is no name of a credential helper", string(h)))
	}
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.String(), verb) //nolint:gosec // the operator's own program
	out := &capped.Buffer{Most: maxAnswer}
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = bytes.NewReader(input), out, time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // it answered, and an agent that it started holds its output
		err = nil
	}
	text := strings.TrimSpace(out.String())
	switch {
	case err == nil:
		return out.Bytes(), nil
	case errors.Is(err, exec.ErrNotFound):
		return nil, deadError(h.String() + " is not installed")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, deadError(fmt.Sprintf("%s did not answer within %s; it may wait for somebody to unlock it", h,
			helperLimit))
	case strings.Contains(text, notFound):
		return nil, errNone
	case text != "" && (verb != "get" || !strings.Contains(text, "{")): // never a login
		return nil, fmt.Errorf("%s: %w: %s", h, err, plain.Clip(plain.Line(text), maxProblem))
	}
	return nil, fmt.Errorf("%s: %w", h, err)
}
