package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// TestHelpFits breaks the help of every command for a terminal of 80 columns: no line is longer but commands to copy,
// and no word is lost.
func TestHelpFits(t *testing.T) {
	t.Parallel()
	const width = 80
	for _, c := range allCommands(Commands()) {
		text := c.Long + "\n\n" + c.UsageString()
		got := fitted(text, width)
		if diff := cmp.Diff(strings.Fields(got), strings.Fields(text)); diff != "" {
			t.Errorf("%s: words (-got +want):\n%s", c.CommandPath(), diff)
		}
		for line := range strings.Lines(got) {
			isCommand := strings.Contains(line, "kkbundle ") && strings.HasPrefix(line, "  ")
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width && !isCommand &&
				strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), n, line)
			}
		}
	}
}

func TestFitted(t *testing.T) {
	t.Parallel()
	const help = `Installs something that has a long name.
It is filled anew.

  --a     the first line of a row, and
          its second line
  --all   short

Exit codes:
    0  done and nothing else to be said here
   10  short

Usage:
  kkbundle thing --with-a-long-flag that is longer [flags]

Flags:
      --one file   the first of the flags has a description
`
	want := `Installs something that has a
long name. It is filled anew.

  --a     the first line of a
          row, and its second
          line
  --all   short

Exit codes:
    0  done and nothing else
       to be said here
   10  short

Usage:
  kkbundle thing --with-a-long-flag that is longer [flags]

Flags:
      --one file   the first
        of the flags has a
        description
`
	if diff := cmp.Diff(fitted(help, 30), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
