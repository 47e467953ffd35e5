package installer

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/plain"
)

// A masker takes secrets out of text that is kept or shown. Secrets go to hosts by standard input and in files with
// mode 0600 only; the masker is the second line of defence, for programs that print what they were given.
type masker struct {
	mu       sync.Mutex
	secrets  []string
	patterns []*regexp.Regexp
}

const masked = "***"

// newMasker knows what secrets of Kubernetes look like: bootstrap tokens, certificate keys, private keys and the
// credentials in kubeconfig files.
func newMasker() *masker {
	return &masker{patterns: []*regexp.Regexp{
		regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
		regexp.MustCompile(`(?i)(certificate[- ]?key:?\s+)[0-9a-f]{64}`),
		regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		regexp.MustCompile(`((?:client-key-data|token|password|Authorization)["']?\s*[:=]\s*["']?)[^\s"']+`),
	}}
}

// hide makes the masker know a secret, also as it looks in base64.
func (m *masker) hide(secret string) {
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

// known returns text without the secrets that are known.
func (m *masker) known(text string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.secrets {
		text = strings.ReplaceAll(text, s, masked)
	}
	return text
}

// mask returns text without the secrets in it.
func (m *masker) mask(text string) string {
	text = m.known(text)
	for _, p := range m.patterns {
		replacement := masked
		switch p.NumSubexp() {
		case 1:
			replacement = "${1}" + masked
		case 2:
			replacement = "${1}" + masked + "${2}"
		}
		text = p.ReplaceAllString(text, replacement)
	}
	return text
}

// A journal is install.log: every command with its host, task, duration and result, and what it printed.
type journal struct {
	mask *masker
	now  func() time.Time
	// worked, if set, is told when a command began and ended.
	worked func(args []string, start, end time.Time)

	mu sync.Mutex
	w  io.Writer
}

// write adds an entry: a line, and under it what was printed. Whoever looks at the log with a terminal must not have it
// steered by what a host printed.
func (j *journal) write(ctx context.Context, who, text, output string) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s %s\n", j.now().UTC().Format(time.RFC3339), who, taskOf(ctx), strings.ReplaceAll(text, "\n", "\n    "))
	for line := range strings.Lines(output) {
		b.WriteString("    " + strings.TrimRight(line, "\r\n") + "\n")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = io.WriteString(j.w, plain.Lines(j.mask.mask(b.String()))) // the work does not stop because its log cannot be written
}

// brief is a command on one line, for a message.
func (j *journal) brief(what string) string {
	const most = 120
	line := strings.Join(strings.Fields(plain.Lines(j.mask.mask(what))), " ")
	return plain.Clip(line, most)
}

type taskKey struct{}

// inTask marks what is done under a context as belonging to a task, for the journal.
func inTask(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, taskKey{}, name)
}

func taskOf(ctx context.Context) string {
	name, _ := ctx.Value(taskKey{}).(string)
	return orDash(name)
}

type quietKey struct{}

// withoutOutput keeps what commands print out of the journal: secrets, binary streams and long lists.
func withoutOutput(ctx context.Context) context.Context {
	return context.WithValue(ctx, quietKey{}, true)
}

// isQuiet reports whether withoutOutput was asked for.
func isQuiet(ctx context.Context) bool { return ctx.Value(quietKey{}) != nil }

type describedKey struct{}

// describedAs names in the journal what is done by a script that says little to a reader.
func describedAs(ctx context.Context, what string) context.Context {
	return context.WithValue(ctx, describedKey{}, what)
}

// descriptionOf returns what describedAs was given.
func descriptionOf(ctx context.Context) (string, bool) {
	what, ok := ctx.Value(describedKey{}).(string)
	return what, ok
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// keptOutput is how much of a command's output the journal keeps: its end, where the reason of a failure is.
const keptOutput = 64 << 10

// A journaled host records what runs on it, and watches over it.
type journaled struct {
	host.Host
	watch   watch
	journal *journal
}

// Run runs the command and records it. What a command is given is never recorded.
func (h *journaled) Run(ctx context.Context, cmd host.Cmd) error {
	kept := &capped.Tail{Most: keptOutput}
	if !isQuiet(ctx) {
		cmd.Stdout = alsoTo(cmd.Stdout, kept)
	}
	cmd.Stderr = alsoTo(cmd.Stderr, kept)
	what, described := descriptionOf(ctx)
	if !described {
		what = "$ " + commandLine(host.WithoutText(cmd.Args))
	}
	start := h.journal.now()
	err := h.watch.run(ctx, h.Host, cmd, func() string { return h.journal.brief(what) })
	result := "exit 0"
	var exit *host.ExitError
	switch {
	case errors.As(err, &exit):
		result = "exit " + strconv.Itoa(exit.Code)
	case err != nil:
		result = "lost: " + err.Error()
	}
	end := h.journal.now()
	if h.journal.worked != nil {
		h.journal.worked(cmd.Args, start, end)
	}
	took := end.Sub(start).Round(time.Millisecond)
	h.journal.write(ctx, h.watch.host, fmt.Sprintf("%s -> %s in %s", what, result, took), kept.Lines())
	return err
}

func alsoTo(w io.Writer, kept *capped.Tail) io.Writer {
	if w == nil {
		return kept
	}
	return io.MultiWriter(w, kept)
}

// commandLine writes arguments as a shell would take them.
func commandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") != "" {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
