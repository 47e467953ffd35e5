package registrytest

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/auth/token"
)

const (
	tokenPath     = "/auth/token"
	tokenIssuer   = "kkbundle test issuer"
	tokenAudience = "kkbundle test registry"
	tokenKeyID    = "test"
)

// tokenService issues the registry's bearer tokens: one per request, for the requested scopes, to clients with the
// password.
type tokenService struct {
	realm              string
	username, password string
	ttl                time.Duration
	uses               int
	mayPush            func(string) bool
	key                ed25519.PrivateKey

	mu     sync.Mutex
	scopes [][]string
	used   map[string]int
}

// Scopes returns the requested scopes of all tokens issued so far, in order: "repository:a/b:pull,push". Without
// AuthToken it is empty.
func (s *Server) Scopes() [][]string {
	if s.tokens == nil {
		return nil
	}
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	return slices.Clone(s.tokens.scopes)
}

func (s *Server) startTokens(o Options, conf *tls.Config) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("key of the token service: %w", err)
	}
	s.tokens = &tokenService{
		realm: s.URL + tokenPath, username: s.Username, password: s.Password,
		ttl: o.TokenTTL, uses: o.TokenUses, mayPush: o.MayPush, key: key, used: map[string]int{},
	}
	s.tokens.ttl = cmp.Or(s.tokens.ttl, 5*time.Minute)
	if !o.TokenApart {
		return nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the token service: %w", err)
	}
	scheme, _, _ := strings.Cut(s.URL, "://")
	s.tokens.realm = scheme + "://" + ln.Addr().String() + tokenPath
	s.serve(ln, conf, s.log.record(s.tokens.mount(http.NotFoundHandler())))
	return nil
}

// configure writes the public key for the registry and returns the registry's settings.
func (t *tokenService) configure(dir string) (configuration.Auth, error) {
	type jwk struct {
		Kty string `json:"kty"`
		Crv string `json:"crv"`
		X   string `json:"x"`
		Kid string `json:"kid"`
		Alg string `json:"alg"`
		Use string `json:"use"`
	}
	public := t.key.Public().(ed25519.PublicKey)
	set, err := json.Marshal(map[string][]jwk{"keys": {{
		Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public), Kid: tokenKeyID, Alg: "EdDSA",
		Use: "sig",
	}}})
	if err != nil {
		return nil, fmt.Errorf("key set of the token service: %w", err)
	}
	path := filepath.Join(dir, "jwks.json")
	if err := os.WriteFile(path, set, 0o600); err != nil {
		return nil, fmt.Errorf("write the key set of the token service: %w", err)
	}
	return configuration.Auth{"token": {
		"realm": t.realm, "issuer": tokenIssuer, "service": tokenAudience,
		"jwks": path,
	}}, nil
}

// mount answers for the token service and passes other requests to next.
func (t *tokenService) mount(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != tokenPath:
			next.ServeHTTP(w, r)
		case r.Method != http.MethodGet:
			http.NotFound(w, r) // no OAuth2 flow: clients fall back to GET
		default:
			t.issue(w, r)
		}
	})
}

func (t *tokenService) issue(w http.ResponseWriter, r *http.Request) {
	user, password, ok := r.BasicAuth()
	known := subtle.ConstantTimeCompare([]byte(user+"\x00"+password), []byte(t.username+"\x00"+t.password)) == 1
	if !ok || !known {
		w.Header().Set("WWW-Authenticate", `Basic realm="test token service"`)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"incorrect username or password"}]}`))
		return
	}
	var scopes []string
	for _, s := range r.URL.Query()["scope"] {
		scopes = append(scopes, strings.Fields(s)...)
	}
	raw, err := t.sign(scopes)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	t.mu.Lock()
	t.scopes = append(t.scopes, scopes)
	t.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	// the client may be gone
	_ = json.NewEncoder(w).Encode(map[string]any{"token": raw, "expires_in": int(t.ttl.Seconds())})
}

func (t *tokenService) sign(scopes []string) (string, error) {
	now := time.Now()
	claims := token.ClaimSet{
		Issuer: tokenIssuer, Subject: t.username, Audience: token.AudienceList{tokenAudience}, JWTID: rand.Text(),
		Expiration: now.Add(t.ttl - token.Leeway).Unix(), // the registry adds the leeway again
		NotBefore:  now.Add(-time.Minute).Unix(), IssuedAt: now.Unix(),
	}
	for _, s := range scopes {
		kind, rest, _ := strings.Cut(s, ":")
		i := strings.LastIndexByte(rest, ':') // a name may hold a port
		if i < 0 {
			continue
		}
		actions := strings.Split(rest[i+1:], ",")
		if t.mayPush != nil && !t.mayPush(rest[:i]) {
			actions = slices.DeleteFunc(actions, func(a string) bool { return a == "push" })
		}
		claims.Access = append(claims.Access, &token.ResourceActions{Type: kind, Name: rest[:i], Actions: actions})
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString([]byte(`{"alg":"EdDSA","kid":"`+tokenKeyID+`","typ":"JWT"}`)) + "." +
		enc.EncodeToString(payload)
	return signed + "." + enc.EncodeToString(ed25519.Sign(t.key, []byte(signed))), nil
}

// limitUses removes an exhausted token from requests, so that the registry requests a new one. Expiry by the clock
// would make tests wait.
func (t *tokenService) limitUses(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if raw := r.Header.Get("Authorization"); t.uses > 0 && raw != "" {
			t.mu.Lock()
			t.used[raw]++
			over := t.used[raw] > t.uses
			t.mu.Unlock()
			if over {
				r.Header.Del("Authorization")
			}
		}
		next.ServeHTTP(w, r)
	})
}
