package delta

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// packWith compresses content with the program zstd at a path. Its level 19 is denser than any level of the library.
// The result is a standard frame, so every reader decodes it. A window is at most maxWindow.
func packWith(ctx context.Context, program string, content []byte) ([]byte, error) {
	const level, window = "-19", "--long=26"
	args := []string{level, window, "--single-thread", "--stream-size=" + strconv.Itoa(len(content)), "-q", "-c"}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the operator's own program
	out, problems := &capped.Buffer{Most: len(content) + len(content)>>7 + 1<<10}, &capped.Tail{Most: 4 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(content), out, problems, time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("compress with %s: %w: %s", program, err, strings.TrimSpace(problems.String()))
	}
	return out.Bytes(), nil
}
