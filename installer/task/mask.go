package task

import (
	"context"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Masker takes secrets out of text that is kept or shown. Secrets go to hosts by standard input and in files with
// mode 0600 only; the Masker is the second line of defence, for programs that print what they were given.
type Masker struct {
	mu       sync.Mutex
	secrets  []string
	patterns []*regexp.Regexp
}

const Masked = "***"

// NewMasker knows what secrets of Kubernetes look like: bootstrap tokens, certificate keys, private keys and the
// credentials in kubeconfig files.
func NewMasker() *Masker {
	return &Masker{patterns: []*regexp.Regexp{
		regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
		regexp.MustCompile(`(?i)(certificate[- ]?key:?\s+)[0-9a-f]{64}`),
		regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		regexp.MustCompile(`((?:client-key-data|token|password|Authorization)["']?\s*[:=]\s*["']?)[^\s"']+`),
	}}
}

// Hide makes the masker know a secret, also as it looks in base64.
func (m *Masker) Hide(secret string) {
	if len(secret) < 6 { // shorter ones would take innocent text away with them
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
		if !slices.Contains(m.secrets, s) {
			m.secrets = append(m.secrets, s)
		}
	}
}

// Known returns text without the secrets that are Known.
func (m *Masker) MaskKnown(text string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.secrets {
		text = strings.ReplaceAll(text, s, Masked)
	}
	return text
}

// Mask returns text without the secrets in it.
func (m *Masker) Mask(text string) string {
	text = m.MaskKnown(text)
	for _, p := range m.patterns {
		replacement := Masked
		switch p.NumSubexp() {
		case 1:
			replacement = "${1}" + Masked
		case 2:
			replacement = "${1}" + Masked + "${2}"
		}
		text = p.ReplaceAllString(text, replacement)
	}
	return text
}

type taskKey struct{}

// InTask marks what is done under a context as belonging to a task, for the journal.
func InTask(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, taskKey{}, name)
}

func TaskOf(ctx context.Context) string {
	name, _ := ctx.Value(taskKey{}).(string)
	return OrDash(name)
}

type quietKey struct{}

// WithoutOutput keeps what commands print out of the journal: secrets, binary streams and long lists.
func WithoutOutput(ctx context.Context) context.Context {
	return context.WithValue(ctx, quietKey{}, true)
}

// IsQuiet reports whether WithoutOutput was asked for.
func IsQuiet(ctx context.Context) bool { return ctx.Value(quietKey{}) != nil }

type describedKey struct{}

// DescribedAs names in the journal what is done by a script that says little to a reader.
func DescribedAs(ctx context.Context, what string) context.Context {
	return context.WithValue(ctx, describedKey{}, what)
}

// DescriptionOf returns what DescribedAs was given.
func DescriptionOf(ctx context.Context) (string, bool) {
	what, ok := ctx.Value(describedKey{}).(string)
	return what, ok
}

func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// CommandLine writes arguments as a shell would take them.
func CommandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") != "" {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

type patienceKey struct{}

// Patient says that what is done under a context may be silent for so long by itself: it has a limit of its own.
func WithPatience(ctx context.Context, own time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, own)
}

// PatienceOf returns the time that patient was given, 0 without it.
func PatienceOf(ctx context.Context) time.Duration {
	own, _ := ctx.Value(patienceKey{}).(time.Duration)
	return own
}
