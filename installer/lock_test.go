package installer

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/engine"
)

// TestHoldLock runs what holds a host's lock: it lasts while it is fed and ends with its input, or when that goes
// silent.
func TestHoldLock(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]string{"its input ends": "60", "its input is silent": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "owner")
			cmd := exec.CommandContext(t.Context(), "sh", "-c", engine.HoldLockScript, "hold-lock.sh", file, silence)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(in, "me\n"); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "me\n" {
				t.Fatalf("got %q, %v; want the owner repeated", line, err)
			}
			if name == "its input ends" { // the other may be silent for too long at any time
				for range 3 {
					if _, err := io.WriteString(in, "."); err != nil {
						t.Fatalf("it ended although it was fed: %v", err)
					}
				}
				if err := in.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if data, err := os.ReadFile(file); string(data) != "me\n" {
				t.Errorf("got %q, %v; want the owner", data, err)
			}
		})
	}
}
