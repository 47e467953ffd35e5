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

// A Masker removes secrets from text that is stored or shown. Secrets reach hosts only by standard input and in files
// with mode 0600; the Masker is the second line of defence, for programs that print their input.
type Masker struct {
	mu       sync.Mutex
	secrets  []string
	patterns []*regexp.Regexp
}

// Masked stands for a removed secret.
const Masked = "***"

// NewMasker returns a Masker with the patterns of Kubernetes secrets: bootstrap tokens, certificate keys, private
// keys and the credentials in kubeconfig files.
func NewMasker() *Masker {
	return &Masker{patterns: []*regexp.Regexp{
		regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
		regexp.MustCompile(`(?i)(certificate[- ]?key:?\s+)[0-9a-f]{64}`),
		regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		regexp.MustCompile(`((?:client-key-data|token|password|Authorization)["']?\s*[:=]\s*["']?)[^\s"']+`),
	}}
}

// Hide adds a secret, as it is and in base64.
func (m *Masker) Hide(secret string) {
	if len(secret) < 6 { // shorter ones would remove innocent text
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

// MaskKnown returns text without the secrets added by Hide.
func (m *Masker) MaskKnown(text string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.secrets {
		text = strings.ReplaceAll(text, s, Masked)
	}
	return text
}

// Mask returns text without added secrets and text that matches a pattern.
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

// InTask returns a context whose commands the journal lists under a task.
func InTask(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, taskKey{}, name)
}

// NameOf returns the task named by InTask, or a dash.
func NameOf(ctx context.Context) string {
	name, _ := ctx.Value(taskKey{}).(string)
	return OrDash(name)
}

type quietKey struct{}

// WithoutOutput returns a context whose commands have no output in the journal: it may hold secrets, binary data or
// long lists.
func WithoutOutput(ctx context.Context) context.Context {
	return context.WithValue(ctx, quietKey{}, true)
}

// IsQuiet reports whether ctx comes from WithoutOutput.
func IsQuiet(ctx context.Context) bool { return ctx.Value(quietKey{}) != nil }

type describedKey struct{}

// DescribedAs returns a context whose commands appear in the journal with this description.
func DescribedAs(ctx context.Context, what string) context.Context {
	return context.WithValue(ctx, describedKey{}, what)
}

// DescriptionOf returns the description set by DescribedAs.
func DescriptionOf(ctx context.Context) (string, bool) {
	what, ok := ctx.Value(describedKey{}).(string)
	return what, ok
}

// OrDash returns s, or a dash if s is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// CommandLine quotes arguments for a shell.
func CommandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.Trim(a,
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") != "" {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

type patienceKey struct{}

// WithPatience returns a context whose commands may be silent for so much longer, because they have a time limit of
// their own.
func WithPatience(ctx context.Context, own time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, own)
}

// PatienceOf returns the time set by WithPatience, or 0.
func PatienceOf(ctx context.Context) time.Duration {
	own, _ := ctx.Value(patienceKey{}).(time.Duration)
	return own
}
