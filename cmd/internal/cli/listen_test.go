package cli_test

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

// TestPortInUse wants the flag, the address and the way around.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed below
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	for _, flags := range [][]string{{"--listen", taken}, {"--listen", "127.0.0.1:0", "--metrics", taken}} {
		var out, text bytes.Buffer
		args := append([]string{"registry", "serve", "--dir", t.TempDir(), "--plain-http"}, flags...)
		code := cli.Main(t.Context(), args, terminal.Streams{Out: &out, Err: &text})
		flag := flags[len(flags)-2]
		want := "kkbundle: " + flag + " " + taken + ": another program uses the port\n  -> name another port with " +
			flag + " HOST:PORT"
		if code != 1 || !strings.Contains(text.String(), want) {
			t.Errorf("%q: code %d: %s", flags, code, text.String())
		}
	}
}
