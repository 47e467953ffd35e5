package terminal

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	columnGap   = 2
	leastColumn = 12 // no column is folded below this width
)

// PrintTable prints rows under headers in aligned columns. On a terminal that is too narrow for them, long cells
// continue on further lines, broken between words and after the slashes and commas of names. Elsewhere each row is
// one line.
func (c *Console) PrintTable(headers []string, rows [][]string) error {
	table := append([][]string{headers}, rows...)
	for _, row := range table {
		for i, cell := range row {
			row[i] = plain.Line(cell)
		}
	}
	if width := Width(c.Out); width > 0 {
		table = folded(table, width)
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 4, columnGap, ' ', 0)
	for _, row := range table {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if _, err := io.WriteString(c.Out, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// folded returns a table whose widest columns are folded until it fits. Every row has as many cells as the first.
func folded(table [][]string, width int) [][]string {
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := columnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := slices.Index(widths, slices.Max(widths))
		if widths[widest] <= leastColumn {
			break
		}
		widths[widest]--
	}
	var out [][]string
	for _, row := range table {
		cells := make([][]string, len(row))
		lines := 1
		for i, cell := range row {
			cells[i] = foldCell(cell, widths[i])
			lines = max(lines, len(cells[i]))
		}
		for line := range lines {
			next := make([]string, len(row))
			for i := range cells {
				if line < len(cells[i]) {
					next[i] = cells[i][line]
				}
			}
			out = append(out, next)
		}
	}
	return out
}

// foldCell breaks text into lines of at most width characters. A word, or a part of a name, that is longer stays whole.
func foldCell(text string, width int) []string {
	var lines []string
	line := ""
	for text != "" {
		part := text
		if i := strings.IndexAny(text, " /,"); i >= 0 {
			part = text[:i+1]
		}
		text = text[len(part):]
		if line != "" && utf8.RuneCountInString(line+strings.TrimRight(part, " ")) > width {
			lines = append(lines, strings.TrimRight(line, " "))
			line = ""
		}
		line += part
	}
	return append(lines, line)
}
