// Recording runs the commands of a session, keeps their output with its times in asciinema's format (version 2), and
// draws a recording as an SVG picture that shows each line when it came. `make recording` calls it.
//
//	recording record SESSION CAST    SESSION has one shell command a line; lines with # are comments
//	recording draw CAST SVG
//
// Commands write to a pipe, so the recording has no progress line. Lines longer than the terminal are cut, and of a
// long output the lines between its first and its last ones are counted only.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	columns   = 80
	wholeRows = 12 // a longer output of one command is shortened
	firstRows = 3  // what is left of it
	lastRows  = 5
	longest   = 2.0 // seconds that a viewer waits for a line at most
	rowHeight = 17
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 3 || args[0] != "record" && args[0] != "draw" {
		return errors.New("usage: recording record SESSION CAST | recording draw CAST SVG")
	}
	data, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var out string
	if args[0] == "record" {
		out, err = record(ctx, string(data))
	} else {
		out, err = draw(string(data))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	return os.WriteFile(args[2], []byte(out), 0o644) //nolint:gosec // a picture for everybody
}

// A header is the first line of a recording.
type header struct {
	Version   int   `json:"version"`
	Width     int   `json:"width"`
	Height    int   `json:"height"`
	Timestamp int64 `json:"timestamp"`
}

// A line is a line of a recording.
type line struct {
	at   float64 // seconds since the start
	text string
}

// record runs a session's commands in a shell and returns the recording. A command that fails ends it without one.
func record(ctx context.Context, session string) (string, error) {
	start := time.Now()
	var lines []line
	for command := range strings.Lines(session) {
		command = strings.TrimSpace(command)
		if command == "" || command[0] == '#' {
			continue
		}
		output, err := execute(ctx, command, start)
		if err != nil {
			return "", fmt.Errorf("%s: %w", command, err)
		}
		lines = append(append(lines, line{output[0].at, "$ " + command}), shortened(output[1:])...)
		lines = append(lines, line{output[len(output)-1].at, ""})
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(header{Version: 2, Width: columns, Height: len(lines), Timestamp: start.Unix()})
	for _, l := range lines {
		err = errors.Join(err, e.Encode([]any{float64(int(l.at*1000)) / 1000, "o", l.text + "\r\n"}))
	}
	return b.String(), err
}

// execute returns the lines that a command prints, after an empty one that has the time of its start.
func execute(ctx context.Context, command string, start time.Time) ([]line, error) {
	output := []line{{at: time.Since(start).Seconds()}}
	reader, writer := io.Pipe()
	c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", command)
	c.Stdout, c.Stderr = writer, writer
	done := make(chan error, 1)
	go func() {
		err := c.Run()
		_ = writer.Close()
		done <- err
	}()
	s := bufio.NewScanner(reader)
	for s.Scan() {
		output = append(output, line{time.Since(start).Seconds(), s.Text()})
	}
	_ = reader.Close() // a command that still writes ends
	err := <-done
	if err == nil {
		err = s.Err()
	} else {
		for _, l := range output {
			fmt.Fprintln(os.Stderr, l.text)
		}
	}
	return append(output, line{at: time.Since(start).Seconds()}), err
}

// shortened cuts a command's output to what the picture has room for. Its last line, which is empty, has the time of
// the end.
func shortened(output []line) (list []line) {
	output = output[:len(output)-1]
	for len(output) > 0 && output[len(output)-1].text == "" {
		output = output[:len(output)-1]
	}
	for i, l := range output {
		switch {
		case len(output) <= wholeRows || i < firstRows || i >= len(output)-lastRows:
			list = append(list, line{l.at, cut(l.text)})
		case i == firstRows:
			list = append(list, line{l.at, fmt.Sprintf("… %d more lines", len(output)-firstRows-lastRows)})
		}
	}
	return list
}

// cut shortens a text to the width of the terminal.
func cut(text string) string {
	text = strings.ReplaceAll(text, "\t", "    ")
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	return string([]rune(text)[:columns-1]) + "…"
}

// draw returns the picture of a recording. A viewer without animations sees all of it.
func draw(cast string) (string, error) {
	lines, err := parse(cast)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	height := (len(lines)+2)*rowHeight + 6
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 %d" font-family="ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="13.4">`+"\n", height)
	b.WriteString("<style>text{fill:#d8dee9;white-space:pre;animation:l 1ms both}.c{fill:#a3be8c;font-weight:bold}@keyframes l{from{opacity:0}}" +
		"@media(prefers-reduced-motion:reduce){text{animation:none}}</style>\n")
	fmt.Fprintf(&b, `<rect width="700" height="%d" rx="6" fill="#22272e"/>`+"\n", height)
	shown, before := 0.0, 0.0
	for i, l := range lines {
		shown += min(l.at-before, longest)
		before = l.at
		if l.text == "" {
			continue
		}
		class := ""
		if strings.HasPrefix(l.text, "$ ") {
			class = ` class="c"`
		}
		fmt.Fprintf(&b, `<text x="14" y="%d" xml:space="preserve"%s style="animation-delay:%.2fs">%s</text>`+"\n",
			(i+2)*rowHeight, class, shown, html.EscapeString(l.text))
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// parse returns the lines of a recording.
func parse(cast string) (lines []line, err error) {
	first, rest, _ := strings.Cut(cast, "\n")
	var h header
	if err := json.Unmarshal([]byte(first), &h); err != nil || h.Version != 2 {
		return nil, errors.New("no recording of asciinema's version 2")
	}
	for text := range strings.Lines(rest) {
		var event [3]any
		if err := json.Unmarshal([]byte(text), &event); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(lines)+2, err)
		}
		at, ok := event[0].(float64)
		output, isText := event[2].(string)
		if !ok || !isText || event[1] != "o" {
			return nil, fmt.Errorf("line %d: not a line of output", len(lines)+2)
		}
		lines = append(lines, line{at, strings.TrimSuffix(output, "\r\n")})
	}
	return lines, nil
}
