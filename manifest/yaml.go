package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/capped"
)

const (
	// APIVersion is the apiVersion of every file this package reads.
	APIVersion = "kkbundle.io/v1"

	// MaxFileSize is the maximal size of a Bundle, Cluster or Inventory: far above real files (20,000 image names are 2
	// MiB).
	MaxFileSize = 4 << 20
	// MaxLockSize is the maximal size of a Lock; 100,000 pins are about 45 MiB.
	MaxLockSize = 64 << 20

	// maxDepth is the deepest nesting. Typed parts need six levels; the rest is for kubeadm's free-form parts.
	maxDepth = 48
)

// limits bounds one file before and while it is parsed.
type limits struct {
	// size is the most bytes.
	size int
	// values is the most values, including repeats through aliases.
	values int
}

func fileLimits() limits { return limits{size: MaxFileSize, values: 300_000} }

func limitsOf(kind string) limits {
	if kind == KindLock {
		return lockLimits()
	}
	return fileLimits()
}

// lockLimits allows for 20 values in each of 100,000 pins.
func lockLimits() limits { return limits{size: MaxLockSize, values: 2_000_000} }

// parse reads the one YAML document of a file.
func parse(file string, data []byte, l limits) (*yaml.Node, Problems) {
	documents, problems := parseAll(file, data, l)
	if problems != nil {
		return nil, problems
	}
	if len(documents) > 1 {
		second := documents[1]
		return nil, Problems{{File: file, Line: second.Line, Column: max(second.Column, 1), Message: "a second document starts here; write one document a file"}}
	}
	return documents[0].Content[0], nil
}

// parseAll reads the YAML documents of a file, at least one.
func parseAll(file string, data []byte, l limits) ([]*yaml.Node, Problems) {
	one := func(at position, format string, args ...any) Problems {
		return Problems{{File: file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...)}}
	}
	if len(data) > l.size {
		return nil, one(position{}, "the file has %d bytes; at most %d are read", len(data), l.size)
	}
	if n := capped.Values(data); n > l.values {
		return nil, one(position{}, "the file has about %d values; at most %d are read", n, l.values)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var documents []*yaml.Node
	for {
		var document yaml.Node
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF) && len(documents) == 0:
			return nil, one(position{line: 1, column: 1}, "the file is empty")
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			at, message := yamlError(err, data)
			return nil, one(at, "%s", message)
		case document.Kind != yaml.DocumentNode || len(document.Content) != 1:
			return nil, one(position{line: 1, column: 1}, "the file is empty")
		}
		documents = append(documents, &document)
	}
}

// yamlError extracts the line from the text of a YAML library error.
func yamlError(err error, data []byte) (position, string) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	at := position{line: 1, column: 1}
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, text, found := strings.Cut(rest, ": ")
		if line, convErr := strconv.Atoi(number); found && convErr == nil {
			at, message = position{line: line, column: 1}, text
		}
		// The library counts lines from 0 in errors of its parser, but not of its scanner.
		if slices.Contains(parserErrors(), message) {
			at.line++
		}
	}
	if name, ok := strings.CutPrefix(message, "unknown anchor '"); ok {
		name = "*" + strings.TrimSuffix(name, "' referenced")
		if i := bytes.Index(data, []byte(name)); i >= 0 {
			before := data[:i]
			at = position{line: bytes.Count(before, []byte("\n")) + 1, column: i - bytes.LastIndexByte(before, '\n')}
		}
	}
	at, message = indentation(at, message, data)
	return at, "not valid YAML: " + shorten(message)
}

// indentation says it if a wrong indentation of the line is the likely cause of the YAML library's message.
func indentation(at position, message string, data []byte) (position, string) {
	switch message {
	case "found character that cannot start any token":
		lines := bytes.Split(data, []byte("\n"))
		if at.line > len(lines) {
			return at, message
		}
		line := lines[at.line-1]
		if i := bytes.IndexByte(line, '\t'); i >= 0 && len(bytes.TrimLeft(line[:i], " ")) == 0 {
			return position{line: at.line, column: i + 1}, "the line is indented with a tab: indent it with blanks"
		}
	case "did not find expected '-' indicator", "did not find expected key":
		return at, message + ": check that the line is indented as its neighbours are"
	}
	return at, message
}

func parserErrors() []string {
	return []string{
		"did not find expected key",
		"did not find expected '-' indicator",
		"did not find expected ',' or ']'",
		"did not find expected ',' or '}'",
		"did not find expected node content",
		"did not find expected <document start>",
	}
}
