package convert

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// list reads a list, in which each line is an image reference or the address of a file. Comments begin with #. A
// trailing comma, quotes and a leading "- " are allowed, as in lines copied from other files.
func (f *reader) list(data []byte) error {
	images, files := 0, 0
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		text := entry(lines.Text())
		switch {
		case text == "":
		case isURL(text):
			files++
			f.listedFile(number, text)
		default:
			if err := f.listedImage(number, text); err != nil {
				return err
			}
			images++
		}
		if images+files > maxValues {
			return errTooMuch
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read its lines: %w", err)
	}
	switch {
	case images == 0 && files == 0:
		return errors.New("the file is empty")
	case images > 0:
		f.is("list of images")
	}
	if files > 0 {
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
	line = strings.TrimPrefix(strings.TrimSpace(line), "- ")
	return strings.Trim(strings.TrimSuffix(strings.TrimSpace(line), ","), `"' `)
}

func (f *reader) listedImage(number int, text string) error {
	image := manifest.Image{Name: strings.TrimPrefix(text, "docker://")}
	if _, err := image.Ref(); err != nil || strings.ContainsAny(text, " \t{}") {
		return fmt.Errorf("line %d: %q is not an image reference, and the file is not YAML of a known kind; known are %s", number, shorten(text), known)
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
			f.platform(part[3])
		}
	}
	f.addFile(nil, manifest.File{Name: name, URL: text})
}
