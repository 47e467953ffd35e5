package document

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
	// MaxFileSize is the maximal size of a file, except for a Lock: far above real files (20,000 image names are 2
	// MiB).
	MaxFileSize = 4 << 20

	// maxDepth is the deepest nesting. Typed parts need six levels; the rest is for kubeadm's free-form parts.
	maxDepth = 48
)

// Limits bound one file before and while it is parsed.
type Limits struct {
	// Size is the most bytes.
	Size int
	// Values is the most values, including repeats through aliases.
	Values int
}

// FileLimits returns the limits of a file that people write.
func FileLimits() Limits { return Limits{Size: MaxFileSize, Values: 300_000} }

// Parse reads the one YAML document of a file. The error is Problems.
func Parse(file string, data []byte, l Limits) (*Tree, error) {
	root, problems := parse(file, data, l)
	if problems != nil {
		return nil, problems
	}
	return &Tree{File: file, Root: root}, nil
}

// ParseAll reads the YAML documents of a file, without empty ones. The error is Problems.
func ParseAll(file string, data []byte, l Limits) ([]*yaml.Node, error) {
	documents, problems := parseAll(file, data, l)
	if problems != nil {
		return nil, problems
	}
	var roots []*yaml.Node
	for _, document := range documents {
		if root := document.Content[0]; root.Tag != "!!null" {
			roots = append(roots, root)
		}
	}
	return roots, nil
}

// parse reads the one YAML document of a file.
func parse(file string, data []byte, l Limits) (*yaml.Node, Problems) {
	documents, problems := parseAll(file, data, l)
	if problems != nil {
		return nil, problems
	}
	if len(documents) > 1 {
		second := documents[1]
		return nil, Problems{{
			File: file, Line: second.Line, Column: max(second.Column, 1),
			Message: "a second document starts here; write one document a file",
		}}
	}
	return documents[0].Content[0], nil
}

// parseAll reads the YAML documents of a file, at least one.
func parseAll(file string, data []byte, l Limits) ([]*yaml.Node, Problems) {
	one := func(at Position, format string, args ...any) Problems {
		return Problems{{File: file, Line: at.Line, Column: at.Column, Message: fmt.Sprintf(format, args...)}}
	}
	if len(data) > l.Size {
		return nil, one(Position{}, "the file has %d bytes; at most %d are read", len(data), l.Size)
	}
	if n := capped.Values(data); n > l.Values {
		return nil, one(Position{}, "the file has about %d values; at most %d are read", n, l.Values)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var documents []*yaml.Node
	for {
		var document yaml.Node
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF) && len(documents) == 0:
			return nil, one(Position{Line: 1, Column: 1}, "the file is empty")
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			at, message := yamlError(err, data)
			return nil, one(at, "%s", message)
		case document.Kind != yaml.DocumentNode || len(document.Content) != 1:
			return nil, one(Position{Line: 1, Column: 1}, "the file is empty")
		}
		documents = append(documents, &document)
	}
}

// yamlError extracts the line from the text of a YAML library error.
func yamlError(err error, data []byte) (Position, string) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	at := Position{Line: 1, Column: 1}
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, text, found := strings.Cut(rest, ": ")
		if line, convErr := strconv.Atoi(number); found && convErr == nil {
			at, message = Position{Line: line, Column: 1}, text
		}
		// The library counts lines from 0 in errors of its parser, but not of its scanner.
		if slices.Contains(parserErrors(), message) {
			at.Line++
		}
	}
	if name, ok := strings.CutPrefix(message, "unknown anchor '"); ok {
		name = "*" + strings.TrimSuffix(name, "' referenced")
		if i := bytes.Index(data, []byte(name)); i >= 0 {
			before := data[:i]
			at = Position{Line: bytes.Count(before, []byte("\n")) + 1, Column: i - bytes.LastIndexByte(before, '\n')}
		}
	}
	at, message = indentation(at, message, data)
	return at, "not valid YAML: " + Shorten(message)
}

// indentation says it if a wrong indentation of the line is the likely cause of the YAML library's message.
func indentation(at Position, message string, data []byte) (Position, string) {
	switch message {
	case "found character that cannot start any token":
		lines := bytes.Split(data, []byte("\n"))
		if at.Line > len(lines) {
			return at, message
		}
		line := lines[at.Line-1]
		if i := bytes.IndexByte(line, '\t'); i >= 0 && len(bytes.TrimLeft(line[:i], " ")) == 0 {
			return Position{Line: at.Line, Column: i + 1}, "the line is indented with a tab: indent it with blanks"
		}
	case "found incompatible YAML document":
		return at, message + ": remove the line that begins with %YAML"
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
