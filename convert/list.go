package convert

import (
	"bufio"
	"bytes"
	"fmt"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// list reads a list, in which each line is an image reference or the address of a file. Comments begin with #. A
// trailing comma, quotes, a leading "- " or "image: " and a leading --platform are allowed, as in lines copied from
// other files.
func (f *reader) list(data []byte) error {
	var l listed
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		if err := f.entry(&l, number, lines.Text()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read its lines: %w", err)
	}
	return f.isList(l)
}

// sequence reads a list in YAML or JSON, whose entries are texts, or mappings with image.
func (f *reader) sequence(n *yaml.Node) error {
	var l listed
	for _, one := range n.Content {
		one = resolve(one)
		if image := document.ValueOf(one, imageKey); image != nil {
			entry := f.object(one, "")
			entry.skip("name", imageKey)
			entry.rest()
			one = image
		}
		if one.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: this entry of the list is no text; write one image reference or address for each",
				one.Line)
		}
		if err := f.entry(&l, one.Line, one.Value); err != nil {
			return err
		}
	}
	return f.isList(l)
}

// imageKey stands before an image in lines and entries that were copied from Kubernetes YAML.
const imageKey = "image"

// listIn returns the list that a document without a kind is: under its only key images, or the values of keys that are
// all image. nil is another document.
func listIn(documents []*yaml.Node) *yaml.Node {
	if len(documents) != 1 {
		return nil
	}
	n := documents[0]
	if n.Kind == yaml.SequenceNode {
		return n
	}
	if list := document.ValueOf(n, "images"); list != nil && list.Kind == yaml.SequenceNode && len(n.Content) == 2 {
		return list
	}
	all := &yaml.Node{Kind: yaml.SequenceNode}
	for k, v := range document.Pairs(n) {
		if k.Value != imageKey {
			return nil
		}
		all.Content = append(all.Content, v)
	}
	if len(all.Content) == 0 {
		return nil
	}
	return all
}

// listed counts the entries of a list, and those of which only the first column is read.
type listed struct{ images, files, columns int }

func (f *reader) entry(l *listed, number int, line string) error {
	switch text := entry(line); {
	case text == "":
	case isURL(text):
		l.files++
		f.listedFile(number, text)
	default:
		first, further := firstColumn(text)
		if err := f.listedImage(number, first); err != nil {
			return err
		}
		if l.images++; further != "" {
			if l.columns++; l.columns == 1 {
				f.noteAt(number, "%s beside the image was not carried over, nor is what stands beside others: push --rename gives images other names in a registry", shorten(further))
			}
		}
	}
	if l.images+l.files > maxValues {
		return errTooMuch
	}
	return nil
}

func (f *reader) isList(l listed) error {
	switch {
	case l.images == 0 && l.files == 0:
		return errEmpty
	case l.images > 0:
		f.is("list of images")
	}
	if l.files > 0 {
		f.is("list of addresses")
	}
	return nil
}

// entry strips the decoration of a line's entry.
func entry(line string) string {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "#") {
		return ""
	}
	if at := strings.Index(line, " #"); at >= 0 {
		line = line[:at]
	}
	line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "- "))
	if value, ok := strings.CutPrefix(line, imageKey+": "); ok {
		line = value
	}
	return strings.Trim(strings.TrimSuffix(strings.TrimSpace(line), ","), `"' `)
}

// firstColumn splits the text of a line with two columns: an image with its tag or digest, and where it comes from, or
// any image and after an arrow its name in another registry. Other texts have one column, two images side by side, too.
func firstColumn(text string) (image, further string) {
	arrow := strings.Contains(text, "=>") || strings.Contains(text, "->")
	columns := strings.Fields(strings.NewReplacer("=>", " ", "->", " ").Replace(text))
	switch {
	case len(columns) != 2,
		arrow && !isVersioned(columns[0]) && !isVersioned(columns[1]),
		!arrow && (!isVersioned(columns[0]) || isVersioned(columns[1])):
		return text, ""
	}
	return columns[0], columns[1]
}

// isVersioned reports whether a text is an image reference with a tag or a digest.
func isVersioned(text string) bool {
	image := manifest.Image{Name: text}
	_, err := image.Ref()
	return err == nil && strings.ContainsAny(path.Base(text), ":@")
}

// listedImage adds an image. --platform may stand before it, as in the lists of scripts that pull each line.
func (f *reader) listedImage(number int, text string) error {
	platform, name := "", text
	if rest, ok := strings.CutPrefix(text, "--platform"); ok {
		if words := strings.Fields(strings.TrimLeft(rest, "= \t")); len(words) == 2 {
			platform, name = words[0], words[1]
		}
	}
	image := manifest.Image{Name: strings.TrimPrefix(name, "docker://")}
	if _, err := image.Ref(); err != nil || strings.ContainsAny(name, " \t{}") {
		return fmt.Errorf("line %d: %q is not an image reference: write one a line, nothing beside it; the file is not YAML of a known kind either: known are %s", number, shorten(text), known)
	}
	if err := digestOf(image); err != nil {
		return fmt.Errorf("line %d: %s: %w", number, shorten(text), err)
	}
	if platform != "" {
		image.Platforms = f.onPlatform(number, platform)
	} else if f.unsaid.Name == "" {
		f.unsaid, f.unsaidAt = image, number
	}
	f.imageAt(number, image)
	return nil
}

// listedFile adds an address. Addresses of Kubernetes' own programs contain the version and architecture.
func (f *reader) listedFile(number int, text string) {
	name := fileName(text)
	if name == "" || strings.HasSuffix(text, "/") {
		f.noteAt(number, "%s was left out: it does not end in a file name", shorten(text))
		return
	}
	if rest, ok := strings.CutPrefix(text, "https://dl.k8s.io/release/"); ok {
		if part := strings.Split(rest, "/"); len(part) == 5 && part[2] == "linux" {
			f.platform(number, part[3])
		}
	}
	f.addFile(nil, manifest.File{Name: name, URL: text})
}
