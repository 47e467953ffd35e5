package cli

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
)

// groupFlags makes help list the flags that many commands share after the command's own, each group under its title.
func groupFlags(root *cobra.Command) {
	plain := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		out := c.OutOrStderr()
		var text bytes.Buffer
		c.SetOut(&text)
		err := plain(c)
		c.SetOut(out)
		if err != nil {
			return err
		}
		all := strings.TrimRight(c.LocalFlags().FlagUsages(), " \n")
		_, err = io.WriteString(out, strings.Replace(text.String(), all, groupedFlags(c.LocalFlags()), 1))
		if codes := c.Annotations[exitCodesKey]; err == nil && codes != "" {
			_, err = io.WriteString(out, "\n"+codes+"\n")
		}
		return err
	})
}

// exitCodesKey is the annotation of a command whose help ends with a text about its exit codes.
const exitCodesKey = "exit codes"

func exitCodesOf(text string) map[string]string { return map[string]string{exitCodesKey: text} }

// fitHelp makes help fit the terminal that it is printed on. Elsewhere it stays as it is written.
func fitHelp(root *cobra.Command) {
	print := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		out := c.OutOrStdout()
		width := terminal.Width(out)
		if width == 0 {
			print(c, args)
			return
		}
		var text bytes.Buffer
		c.SetOut(&text)
		print(c, args)
		c.SetOut(out)
		_, _ = io.WriteString(out, fitted(text.String(), width)) // as cobra ignores it
	})
}

// fitted breaks the lines of help at blanks. Paragraphs are filled anew, and descriptions continue below their
// beginning. Commands under Usage and Examples stay whole, for copying.
func fitted(help string, width int) string {
	var out strings.Builder
	before := regexp.MustCompile(`^ +\S.*?  +`) // a description of a flag or command
	rows := regexp.MustCompile(`\n {7,}\b`)     // a description goes on; flags without a letter begin with "--"
	whole := false
	for block := range strings.SplitSeq(help, "\n\n") {
		title, _, _ := strings.Cut(block, "\n")
		whole = title == "Usage:" || title == "Examples:" || whole && strings.HasPrefix(block, " ")
		if !strings.Contains(block, "\n ") && !strings.HasPrefix(block, " ") {
			block = strings.ReplaceAll(block, "\n", " ")
		}
		below := 0 // of the descriptions
		if !whole {
			block = rows.ReplaceAllString(block, " ")
		}
		for line := range strings.Lines(block) {
			below = max(below, len(before.FindString(line)))
		}
		for line := range strings.Lines(block) {
			if whole {
				out.WriteString(line)
				continue
			}
			text := strings.TrimSuffix(line, "\n")
			out.WriteString(broken(text, below, width))
			if strings.HasSuffix(line, "\n") {
				out.WriteByte('\n')
			}
		}
		out.WriteString("\n\n")
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// broken breaks one line at blanks. What follows a break begins in the column indent, or below the line's beginning.
func broken(line string, indent, width int) string {
	indent = max(indent, len(line)-len(strings.TrimLeft(line, " ")))
	const least = 20 // of a description
	if indent > width-least {
		indent = min(8, width/2)
	}
	var out strings.Builder
	column, first := 0, true
	for i, word := range strings.Split(line, " ") {
		size := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case !first && column+1+size > width:
			out.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += size
		first = first && word == ""
	}
	return out.String()
}

// groupedFlags returns the help of flags: those without a group first, then each group in the order of its first flag.
func groupedFlags(flags *pflag.FlagSet) string {
	sets := map[string]*pflag.FlagSet{}
	titles := []string{""}
	flags.VisitAll(func(f *pflag.Flag) {
		title := usage.GroupOf(f)
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			if title != "" {
				titles = append(titles, title)
			}
		}
		sets[title].AddFlag(f)
	})
	var parts []string
	for _, title := range titles {
		if sets[title] == nil || !sets[title].HasAvailableFlags() {
			continue
		}
		text := strings.TrimRight(sets[title].FlagUsages(), " \n")
		if title != "" {
			text = title + ":\n" + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n\n")
}
