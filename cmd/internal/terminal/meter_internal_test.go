package terminal

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testMeter is a meter whose time passes when the test says so.
func testMeter(name string) (m *Meter, out *bytes.Buffer, pass func(time.Duration)) {
	now := time.Unix(0, 0)
	m = startMeter(name, func() time.Time { return now })
	out = &bytes.Buffer{}
	m.out = out
	return m, out, func(d time.Duration) { now = now.Add(d) }
}

func TestMeterPlainLines(t *testing.T) {
	t.Parallel()
	m, out, pass := testMeter("fetch")
	pass(time.Minute)
	m.Set(0, 0) // nothing is known yet
	m.last, m.start = m.now(), m.now()
	m.Set(0, 100<<20) // it just began
	pass(9 * time.Second)
	m.Set(10<<20, 100<<20)
	pass(time.Second)
	m.Set(20<<20, 100<<20) // ten seconds are over
	m.Set(21<<20, 100<<20)
	pass(9 * time.Second)
	m.Set(22<<20, 100<<20)
	pass(11 * time.Second)
	m.Set(60<<20, 120<<20) // the total grew; the speed is that of the last 20 seconds
	pass(30 * time.Second)
	m.Set(60<<20, 120<<20) // stalled: still a sign of life
	pass(10 * time.Second)
	m.Set(120<<20, 120<<20)
	m.Stop()
	want := []string{
		"fetch: 20.0 MiB of 100.0 MiB, 2.0 MiB/s, ETA 40s",
		"fetch: 60.0 MiB of 120.0 MiB, 2.0 MiB/s, ETA 30s",
		"fetch: 60.0 MiB of 120.0 MiB, 0 B/s, ETA 1m0s",
		"fetch: 120.0 MiB of 120.0 MiB, 6.0 MiB/s, ETA -",
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(out.String()), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestMeterETA(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what        string
		done, total int64
		elapsed     time.Duration
		want        string
	}{
		{"nothing came yet", 0, 100, time.Minute, "-"},
		{"too early to tell", 50, 100, 500 * time.Millisecond, "-"},
		{"half", 50, 100, time.Minute, "1m0s"},
		{"the total is not known", 50, 0, time.Minute, "-"},
		{"more came than was expected", 150, 100, time.Minute, "-"},
		{"a transfer began anew", -5, 100, time.Minute, "-"},
		{"8 TiB at 1 MiB/s", 1 << 20, 8 << 40, time.Second, "2330h10m7s"},
	} {
		m, _, pass := testMeter("x")
		pass(c.elapsed)
		if got := m.eta(c.done, c.total); got != c.want {
			t.Errorf("%s: got ETA %s, want %s", c.what, got, c.want)
		}
	}
}

func TestMeterWithoutTerminal(t *testing.T) {
	t.Parallel()
	for what, g := range map[string]*Console{"quiet": {Quiet: true}, "json": {JSON: true}} {
		if m := g.NewMeter("x"); m.out != nil || m.bar != nil {
			t.Errorf("%s: the meter would print", what)
		}
	}
	var out bytes.Buffer
	if m := NewConsole(Streams{Err: &out}).NewMeter("x"); m.out == nil || m.bar != nil {
		t.Error("no plain lines without a terminal")
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if m := NewConsole(Streams{Err: f}).NewMeter("x"); m.bar != nil {
		t.Error("a bar on a file that is no terminal")
	}
}
