// Command manpages writes kkbundle's manual pages and shell completions, for `make dist`. The same commands and date
// give the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
)

const usage = "usage: manual DIR VERSION DATE   (DATE in RFC 3339)"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New(usage)
	}
	date, err := time.Parse(time.RFC3339, args[2])
	if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	root := cli.Commands()
	root.DisableAutoGenTag = true
	// Completions first: a page adds cobra's own help command to the commands.
	if err := completions(root, filepath.Join(args[0], "completions")); err != nil {
		return err
	}
	escapeHelp(root, map[*pflag.Flag]bool{})
	header := doc.GenManHeader{Section: "1", Date: &date, Source: "kkbundle " + args[1], Manual: "kkbundle"}
	return pages(root, header, filepath.Join(args[0], "man", "man1"))
}

// pages writes a compressed page for each command that users see.
func pages(c *cobra.Command, header doc.GenManHeader, dir string) error {
	for _, one := range c.Commands() {
		if one.IsAvailableCommand() {
			if err := pages(one, header, dir); err != nil {
				return err
			}
		}
	}
	var text, packed bytes.Buffer
	c.DisableAutoGenTag = true
	if err := doc.GenMan(c, &header, &text); err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text.Bytes()); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return write(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1.gz"), packed.Bytes())
}

// escapeHelp makes Markdown, which pages are generated from, of the help of a command and of those below it. Commands
// share flags.
func escapeHelp(c *cobra.Command, done map[*pflag.Flag]bool) {
	c.Short, c.Long = escape(c.Short), paragraphs(c.Long)
	for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			if !done[f] {
				f.Usage, done[f] = escape(f.Usage), true
			}
		})
	}
	for _, one := range c.Commands() {
		escapeHelp(one, done)
	}
}

// paragraphs escapes a text, and sets its indented lines apart as they are.
func paragraphs(text string) string {
	var b strings.Builder
	inCode := false
	for line := range strings.Lines(text) {
		code, indented := strings.CutPrefix(line, "  ")
		if indented != inCode {
			b.WriteString("\n")
			inCode = indented
		}
		if indented {
			b.WriteString("    " + code)
		} else {
			b.WriteString(escape(line))
		}
	}
	return b.String()
}

func escape(text string) string {
	return strings.NewReplacer("<", "\\<", "*", "\\*", "_", "\\_").Replace(text)
}

// completions writes the scripts under the names that their shells look for.
func completions(root *cobra.Command, dir string) error {
	var bash, zsh, fish bytes.Buffer
	if err := errors.Join(root.GenBashCompletionV2(&bash, true), root.GenZshCompletion(&zsh),
		root.GenFishCompletion(&fish, true)); err != nil {
		return err
	}
	return errors.Join(
		write(filepath.Join(dir, "bash", "kkbundle"), bash.Bytes()),
		write(filepath.Join(dir, "zsh", "_kkbundle"), zsh.Bytes()),
		write(filepath.Join(dir, "fish", "kkbundle.fish"), fish.Bytes()),
	)
}

func write(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}
