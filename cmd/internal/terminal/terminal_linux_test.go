package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a terminal of so many columns.
func openTerminal(t *testing.T, columns uint16) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return screen, terminal
}

// watch reads a screen until "the end" and returns everything. drawn is closed once the text was there so many times.
func watch(screen *os.File, text string, times int) (drawn <-chan struct{}, all <-chan string) {
	begun, read := make(chan struct{}), make(chan string, 1)
	go func() {
		var seen strings.Builder
		buf := make([]byte, 4096)
		for waiting := true; ; {
			n, err := screen.Read(buf)
			seen.Write(buf[:n])
			if waiting && strings.Count(seen.String(), text) >= times {
				waiting = false
				close(begun)
			}
			if err != nil || strings.Contains(seen.String(), "the end") {
				read <- seen.String()
				return
			}
		}
	}()
	return begun, read
}

// TestMeterOnTerminal moves the bar from several sides while it is drawn and lines are printed.
func TestMeterOnTerminal(t *testing.T) {
	t.Parallel()
	screen, terminal := openTerminal(t, 120)
	g := NewConsole(Streams{Err: terminal})
	m := g.NewMeter("fetch")
	if m.bar == nil {
		t.Fatal("no bar on a terminal")
	}
	drawn, all := watch(screen, "ETA ", 3)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := int64(1); ; i++ {
				select {
				case <-drawn:
					return
				default:
					m.Set(i, 1<<30)
					if i%1000 == 0 {
						g.Note("worker %d was here", w)
					}
				}
			}
		})
	}
	workers.Wait()
	m.Stop()
	g.Note("line after")
	_, _ = io.WriteString(terminal, "the end")
	got := <-all
	for _, want := range []string{"fetch ", " / 1.0 GiB", "line after\r\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the terminal does not show %q:\n%q", want, got[max(0, len(got)-2000):])
		}
	}
	if rest := got[strings.LastIndex(got, "line after"):]; strings.Contains(rest, "ETA") {
		t.Errorf("the bar is still there: %q", rest)
	}
}

// TestMeterAfterInterrupt: the terminal shows ^C where its cursor is, and moves it. The bar leaves nothing of itself
// on a narrow terminal.
func TestMeterAfterInterrupt(t *testing.T) {
	t.Parallel()
	const columns = 60
	screen, terminal := openTerminal(t, columns)
	drawn, all := watch(screen, "%", 1)
	g := NewConsole(Streams{Err: terminal})
	m := g.NewMeter("fetch")
	m.Begin("docker.io/library/nginx:1.29")
	m.Set(1<<20, 1<<30)
	<-drawn
	_, _ = io.WriteString(terminal, "^C") // as the terminal echoes it
	m.Stop()
	g.Note("kkbundle: interrupted")
	_, _ = io.WriteString(terminal, "the end")
	if got := shown(<-all, columns); got != "kkbundle: interrupted\nthe end" {
		t.Errorf("the terminal shows %q", got)
	}
}

// TestMeterAfterStopMeters draws nothing once a run was interrupted, whatever the run still does.
func TestMeterAfterStopMeters(t *testing.T) {
	t.Parallel()
	const columns = 80
	screen, terminal := openTerminal(t, columns)
	drawn, all := watch(screen, "%", 1)
	g := NewConsole(Streams{Err: terminal})
	m := g.NewMeter("resolve")
	m.Begin("https://files.example/big")
	m.Set(1<<20, 1<<30)
	<-drawn
	_, _ = io.WriteString(terminal, "^C")
	g.StopMeters()
	_, _ = io.WriteString(terminal, "stopped\n")
	m.Set(2<<20, 1<<30)
	next := g.NewMeter("fetch")
	next.Set(1<<20, 1<<30)
	time.Sleep(500 * time.Millisecond) // two refreshes
	m.Stop()
	next.Stop()
	_, _ = io.WriteString(terminal, "the end")
	got := <-all
	if text := shown(got, columns); text != "stopped\nthe end" {
		t.Errorf("the terminal shows %q", text)
	}
	// Until then a redraw may come, as StopMeters is called a moment after the interrupt.
	if _, after, stopped := strings.Cut(got, "stopped\r\n"); !stopped || strings.Contains(after, "%") {
		t.Errorf("a frame was drawn after the meters were stopped: %q", after)
	}
}

// shown returns what a terminal of so many columns shows of an output: the cursor goes to the first column, up, and
// on; text after it is erased.
func shown(out string, columns int) string {
	lines, row, column := [][]rune{nil}, 0, 0
	down := func() {
		if row++; row == len(lines) {
			lines = append(lines, nil)
		}
	}
	for rest := out; rest != ""; {
		var up int
		switch {
		case strings.HasPrefix(rest, "\x1b[J"):
			lines = lines[:row+1]
			lines[row] = lines[row][:min(column, len(lines[row]))]
			rest = rest[3:]
			continue
		case strings.HasPrefix(rest, "\x1b["):
			if n, _ := fmt.Sscanf(rest, "\x1b[%dA", &up); n == 1 {
				row = max(row-up, 0)
			}
			rest = rest[strings.IndexFunc(rest[2:], unicode.IsLetter)+3:]
			continue
		}
		r, size := utf8.DecodeRuneInString(rest)
		rest = rest[size:]
		switch r {
		case '\r':
			column = 0
		case '\n':
			down()
		default:
			if column == columns {
				down()
				column = 0
			}
			for len(lines[row]) <= column {
				lines[row] = append(lines[row], ' ')
			}
			lines[row][column] = r
			column++
		}
	}
	var text []string
	for _, line := range lines {
		text = append(text, strings.TrimRight(string(line), " "))
	}
	return strings.Join(text, "\n")
}
