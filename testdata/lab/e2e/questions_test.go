package e2e

import (
	"bufio"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// askAgain is a shell script that asks its arguments' addresses one after the other, about ten times a second, and
// prints a line each: address, time in milliseconds, curl's exit code.
const askAgain = `while :; do for url; do
	curl -sk -o /dev/null --fail --max-time 1 "$url"; code=$?; echo "$url $(date +%s%3N) $code"
done; sleep 0.1; done`

// A gap is a client's view of an address: its questions, and the longest times between two answers.
type gap struct {
	last          int64
	asked, failed int
	codes         map[string]int  // curl's, of questions without an answer: 7 refused, 28 no answer within a second
	times         []time.Duration // longer than a second
	// when the first questions without an answer ended, in UTC as in install.log, and curl's code
	missed []string
}

// ask starts commands that run askAgain. answers waits until all have ended and returns what each address gave.
func ask(t *testing.T, cmds ...*exec.Cmd) (answers func() map[string]*gap) {
	t.Helper()
	seen := map[string]*gap{}
	var mu sync.Mutex
	var reading sync.WaitGroup
	for _, cmd := range cmds {
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				if fields := strings.Fields(s.Text()); len(fields) == 3 {
					mu.Lock()
					note(seen, fields)
					mu.Unlock()
				}
			}
			_ = cmd.Wait() // it was told to end
		})
	}
	return func() map[string]*gap {
		reading.Wait()
		for url, g := range seen {
			t.Logf("%s: %d of %d questions were not answered (curl's exit codes: %v); no answer for %s; the first: %q",
				url, g.failed, g.asked, g.codes, g.times, g.missed)
		}
		return seen
	}
}

// bearable fails the test if the address refused a question, or did not answer for longer than a client that tries
// again bears. An answer that took longer than a second is counted only: the lab's machine may be busy.
func (g *gap) bearable(t *testing.T, url string) {
	t.Helper()
	if late := g.codes["28"]; g.failed > late {
		t.Errorf("%s refused %d of %d questions", url, g.failed-late, g.asked)
	}
	if len(g.times) > 0 && slices.Max(g.times) > 15*time.Second {
		t.Errorf("by %s the application did not answer for %s", url, slices.Max(g.times))
	}
}

// note adds a line of askAgain.
func note(seen map[string]*gap, fields []string) {
	now, _ := strconv.ParseInt(fields[1], 10, 64)
	g := seen[fields[0]]
	if g == nil {
		g = &gap{last: now, codes: map[string]int{}}
		seen[fields[0]] = g
	}
	g.asked++
	if fields[2] != "0" {
		g.failed++
		g.codes[fields[2]]++
		if len(g.missed) < 30 {
			g.missed = append(g.missed, time.UnixMilli(now).UTC().Format("15:04:05.000 ")+fields[2])
		}
		return
	}
	if d := time.Duration(now-g.last) * time.Millisecond; d > time.Second {
		g.times = append(g.times, d)
	}
	g.last = now
}
