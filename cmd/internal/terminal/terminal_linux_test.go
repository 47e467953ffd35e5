package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a terminal.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
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
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		t.Fatal(err)
	}
	return screen, terminal
}

// TestMeterOnTerminal moves the bar from several sides while it is drawn and lines are printed.
func TestMeterOnTerminal(t *testing.T) {
	t.Parallel()
	screen, terminal := openTerminal(t)
	g := NewConsole(Streams{Err: terminal})
	m := g.NewMeter("fetch")
	if m.bar == nil {
		t.Fatal("no bar on a terminal")
	}
	drawn, all := make(chan struct{}), make(chan string, 1)
	go func() {
		var seen strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := screen.Read(buf)
			seen.Write(buf[:n])
			if strings.Count(seen.String(), "ETA ") >= 3 && drawn != nil {
				close(drawn)
				drawn = nil
			}
			if err != nil || strings.Contains(seen.String(), "the end") {
				all <- seen.String()
				return
			}
		}
	}()
	enough := drawn
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := int64(1); ; i++ {
				select {
				case <-enough:
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
