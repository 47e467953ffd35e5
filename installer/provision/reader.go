package provision

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

const (
	// maxSize bounds a program, maxContent an unpacked file in it.
	maxSize    = document.MaxFileSize
	maxContent = 64 << 20
)

// Metadata is what Cluster API leaves to the host, for templates.
type Metadata struct {
	Hostname   string
	IPv4, IPv6 netip.Addr // of the node; invalid if it has none
}

// Parse reads a program for a host. The error is document.Problems.
func Parse(file string, data []byte, host Metadata) (*Program, error) {
	r := &reader{filename: file}
	if len(data) > maxSize {
		r.fail(nil, "the file has %d bytes; at most %d are read", len(data), maxSize)
		return nil, r.problems.Err()
	}
	text := r.rendered(string(data), host)
	var p *Program
	switch {
	case strings.HasPrefix(text, "#cloud-config"):
		p = (&cloudReader{reader: r}).program(r.document(text))
	case strings.HasPrefix(strings.TrimSpace(text), "{"):
		p = (&ignitionReader{reader: r}).program(r.document(text))
	default:
		r.fail(nil, "the file begins neither with #cloud-config nor, like Ignition, with {; other formats (MIME parts, scripts, gzip) are not supported")
	}
	if err := r.problems.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// reader reads values of a file, and collects all problems. Each format has a reader of its own on top of it.
type reader struct {
	filename string
	problems document.Problems
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	p := document.Problem{File: r.filename, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	r.problems = append(r.problems, p)
}

const jinjaHeader = "## template: jinja"

// hostNames are the ways in which templates write the host's name: of the metadata, of the standard keys, which have no
// prefix either, with a hyphen only in brackets.
var hostNames = regexp.MustCompile(`{{-?\s*((ds\.meta_data|v1)\.)?(local_hostname|hostname|instance_id)\s*-?}}|` +
	`{{-?\s*(ds\.meta_data|v1)\[\s*["'](local[_-]hostname|hostname|instance[_-]id)["']\s*\]\s*-?}}`)

// addresses are the ways in which templates write the node's address: as in EC2's metadata.
var addresses = regexp.MustCompile(`{{-?\s*ds\.meta_data\.local_(ipv4|ipv6)\s*-?}}|` +
	`{{-?\s*ds\.meta_data\[\s*["']local[_-](ipv4|ipv6)["']\s*\]\s*-?}}`)

// rendered fills in the host's metadata. The first line marks a template.
// https://docs.cloud-init.io/en/latest/explanation/instancedata.html
func (r *reader) rendered(text string, host Metadata) string {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimSpace(first) != jinjaHeader {
		return text
	}
	var out strings.Builder
	line := 1
	for one := range strings.Lines(rest) {
		line++
		one = hostNames.ReplaceAllLiteralString(one, host.Hostname)
		one = addresses.ReplaceAllStringFunc(one, func(name string) string {
			family, address := "4", host.IPv4
			if strings.Contains(name, "ipv6") {
				family, address = "6", host.IPv6
			}
			if !address.IsValid() {
				r.fail(&yaml.Node{Line: line, Column: 1},
					"%s has no IPv%s address in the inventory: give it internalIPv%s", host.Hostname, family, family)
			}
			return address.String()
		})
		if strings.Contains(one, "{{") || strings.Contains(one, "{%") {
			r.fail(&yaml.Node{Line: line, Column: 1},
				"of jinja, only ds.meta_data.local_hostname, hostname, instance_id, local_ipv4 and local_ipv6 are supported")
		}
		out.WriteString(one)
	}
	return out.String()
}

// document parses YAML, a superset of JSON. It returns nil after a problem.
func (r *reader) document(text string) *yaml.Node {
	if strings.TrimSpace(text) == "#cloud-config" {
		r.fail(nil, "the document is empty")
		return nil
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	var doc, more yaml.Node
	if err := d.Decode(&doc); err != nil {
		r.fail(nil, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		r.fail(nil, "there is more than one document")
		return nil
	}
	return doc.Content[0]
}

// mapping calls a function for each key of a mapping. Unknown and repeated keys are problems.
func (r *reader) mapping(n *yaml.Node, what string, known map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := key.Value
		switch read := known[name]; {
		case seen[name]:
			r.fail(key, "duplicate key %s", name)
		case read == nil:
			r.fail(key, "%s of %s is unknown or not supported; supported are %s", name, what,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case value.Kind == yaml.AliasNode:
			r.fail(value, "aliases (*%s) are not supported; write the value out", value.Value)
		default:
			read(value)
		}
		seen[name] = true
	}
}

// list calls a function for each entry of a list.
func (r *reader) list(what string, read func(*yaml.Node)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			r.fail(n, "%s must be a list", what)
			return
		}
		for _, one := range n.Content {
			if one.Kind == yaml.AliasNode {
				r.fail(one, "aliases (*%s) are not supported; write the value out", one.Value)
				continue
			}
			read(one)
		}
	}
}

func (r *reader) text(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			r.fail(n, "want a text")
			return
		}
		*into = n.Value
	}
}

func (r *reader) truth(into *bool) func(*yaml.Node) {
	return func(n *yaml.Node) {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on":
			*into = true
		case "false", "no", "off":
			*into = false
		default:
			r.fail(n, "want true or false")
		}
	}
}

func (r *reader) number(into *int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		v, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < 0 {
			r.fail(n, "want a number")
			return
		}
		*into = v
	}
}

// texts reads a list of texts, or one comma-separated text.
func (r *reader) texts(into *[]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
			for one := range strings.SplitSeq(n.Value, ",") {
				*into = append(*into, strings.TrimSpace(one))
			}
			return
		}
		r.textList("this", into)(n)
	}
}

func (r *reader) textList(what string, into *[]string) func(*yaml.Node) {
	return r.list(what, func(n *yaml.Node) {
		var one string
		r.text(&one)(n)
		*into = append(*into, one)
	})
}

// ignored accepts a value without effect.
func ignored(*yaml.Node) {}

// absolute reads the path of a file.
func (r *reader) absolute(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.text(into)(n)
		if !path.IsAbs(*into) || path.Clean(*into) != *into || strings.ContainsAny(*into, "\x00\n") {
			r.fail(n, "want an absolute path without . and .., not %q", *into)
		}
	}
}

// octal reads a mode written as a text, or as a number that can only be octal.
func (r *reader) octal(into *fs.FileMode) func(*yaml.Node) {
	return func(n *yaml.Node) {
		v, err := strconv.ParseUint(strings.TrimPrefix(n.Value, "0o"), 8, 32)
		if n.Kind != yaml.ScalarNode || err != nil || v > 0o7777 ||
			n.Tag == "!!int" && !strings.HasPrefix(n.Value, "0") {
			r.fail(n, "want a mode in quotes, such as '0644'")
			return
		}
		*into = fs.FileMode(v)
	}
}

// owner reads user:group.
func (r *reader) owner(into *Owner) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var s string
		r.text(&s)(n)
		into.User, into.Group, _ = strings.Cut(s, ":")
		for _, name := range []string{into.User, into.Group} {
			if name != "" && !accountName(name) {
				r.fail(n, "invalid user or group name %q", name)
			}
		}
	}
}

// accountName reports whether s is a valid name for useradd(8), or a number.
func accountName(s string) bool {
	return regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_.-]{0,31}\$?|[0-9]{1,10})$`).MatchString(s)
}

func (r *reader) account(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.text(into)(n)
		r.accounts(n, *into)
	}
}

// unpacked decodes an encoding of cloud-init, or Ignition's compression.
func unpacked(data []byte, encodings ...string) ([]byte, error) {
	for _, e := range encodings {
		switch e {
		case "", "text/plain":
		case "b64", "base64":
			joined := strings.Join(strings.Fields(string(data)), "")
			plain, err := base64.StdEncoding.DecodeString(joined)
			if err != nil {
				return nil, fmt.Errorf("not base64: %w", err)
			}
			data = plain
		case "gz", "gzip":
			z, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return nil, fmt.Errorf("not gzip: %w", err)
			}
			data, err = io.ReadAll(io.LimitReader(z, maxContent+1))
			if err != nil {
				return nil, fmt.Errorf("broken gzip: %w", err)
			}
			if len(data) > maxContent {
				return nil, fmt.Errorf("more than %d bytes", maxContent)
			}
		default:
			return nil, fmt.Errorf("unknown encoding %q; supported are b64, gz, gz+b64 and their long names", e)
		}
	}
	return data, nil
}
