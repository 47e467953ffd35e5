package rpm

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kkbundle/kkbundle/fetch/packages"
)

const (
	maxRepomd      = 1 << 20  // bytes
	maxPrimary     = 8 << 20  // bytes of one package's entry in primary.xml: parsing takes some 20 times as much
	maxFilelists   = 32 << 20 // bytes of one package's entry in filelists.xml
	maxDocument    = 64       // documents named by repomd.xml
	maxListPackage = 1 << 19  // packages of one list: the largest distributions have 70,000
)

// A document is a file named by repomd.xml.
type document struct {
	Type     string   `xml:"type,attr"`
	Checksum checksum `xml:"checksum"`
	Location location `xml:"location"`
	Size     int64    `xml:"size"` // -1 if the file does not say it
}

func (d document) check() error {
	if _, ok := d.Checksum.sum(); !ok {
		return fmt.Errorf("the %s list has a checksum of kind %.20q, but only sha256 and sha512 are accepted", d.Type,
			d.Checksum.Type)
	}
	return nil
}

// A checksum is the sum of a file.
type checksum struct {
	Type string `xml:"type,attr"`
	Sum  string `xml:",chardata"`
}

func (c checksum) sum() (packages.Sum, bool) {
	s, ok := packages.ParseSum(c.Sum)
	return s, ok && strings.EqualFold(c.Type, s.Kind())
}

// A location is the place of a file: below the repository, or below another address (createrepo --baseurl).
type location struct {
	Href string `xml:"href,attr"`
	Base string `xml:"base,attr"`
}

// address returns the address of a file of a repository.
func (l location) address(repository string) (string, error) {
	if l.Href == "" {
		return "", errors.New("it has no location")
	}
	// media://, the number of a disc, and a disk image that names its publisher's server: the file lies in the
	// repository.
	if l.Base == "" || strings.HasPrefix(l.Base, "media:") || !strings.Contains(repository, "://") {
		return packages.Within(repository, l.Href)
	}
	base, err := packages.Within(repository, l.Base)
	if err != nil {
		return "", err
	}
	return packages.Within(base, l.Href)
}

// parseRepomd returns the documents by type.
func parseRepomd(data []byte) (map[string]document, error) {
	var doc struct {
		XMLName xml.Name   `xml:"repomd"`
		Data    []document `xml:"data"`
	}
	if err := strict(bytes.NewReader(data)).Decode(&doc); err != nil {
		return nil, err
	}
	if len(doc.Data) > maxDocument {
		return nil, errors.New("too many documents")
	}
	all := map[string]document{}
	for _, d := range doc.Data {
		if d.Size <= 0 {
			d.Size = -1
		}
		all[d.Type] = d
	}
	return all, nil
}

func strict(r io.Reader) *xml.Decoder {
	d := xml.NewDecoder(r)
	d.Entity = map[string]string{}
	d.CharsetReader = func(charset string, in io.Reader) (io.Reader, error) {
		switch strings.ToLower(charset) {
		case "us-ascii", "ascii":
			return in, nil
		case "iso-8859-1", "iso8859-1", "latin1":
			return &latin1{in: in}, nil
		}
		return nil, fmt.Errorf("its text is in %.20q; UTF-8, ISO-8859-1 and US-ASCII are read", charset)
	}
	return d
}

// latin1 reads ISO-8859-1, whose bytes are the code points, as UTF-8.
type latin1 struct {
	in   io.Reader
	left []byte // of the last byte read, which takes two
}

// Read implements io.Reader.
func (l *latin1) Read(p []byte) (int, error) {
	if len(l.left) > 0 || len(p) == 0 {
		n := copy(p, l.left)
		l.left = l.left[n:]
		return n, nil
	}
	raw := make([]byte, max(len(p)/2, 1))
	n, err := l.in.Read(raw)
	text := make([]byte, 0, 2*n)
	for _, b := range raw[:n] {
		text = utf8.AppendRune(text, rune(b))
	}
	n = copy(p, text)
	l.left = text[n:]
	return n, err
}

// The fields of a package in primary.xml that are in use.
type (
	xmlPackage struct {
		Type    string `xml:"type,attr"`
		Name    string `xml:"name"`
		Arch    string `xml:"arch"`
		Version struct {
			Epoch   string `xml:"epoch,attr"`
			Version string `xml:"ver,attr"`
			Release string `xml:"rel,attr"`
		} `xml:"version"`
		Checksum checksum `xml:"checksum"`
		Size     struct {
			Package string `xml:"package,attr"`
		} `xml:"size"`
		Location location `xml:"location"`
		Format   struct {
			Provides   xmlEntries `xml:"provides"`
			Requires   xmlEntries `xml:"requires"`
			Conflicts  xmlEntries `xml:"conflicts"`
			Recommends xmlEntries `xml:"recommends"`
			Files      []xmlFile  `xml:"file"`
		} `xml:"format"`
	}
	xmlEntries struct {
		Entries []xmlEntry `xml:"entry"`
	}
	xmlEntry struct {
		Name    string `xml:"name,attr"`
		Flags   string `xml:"flags,attr"`
		Epoch   string `xml:"epoch,attr"`
		Version string `xml:"ver,attr"`
		Release string `xml:"rel,attr"`
	}
	xmlFile struct {
		Path string `xml:",chardata"`
	}
)

// elements calls each for every package directly below the root. None may have more bytes than most.
func elements(r io.Reader, most int, each func(decode func(any) error) error) error {
	in := &budget{r: r, most: most}
	d := strict(in)
	depth, packages := 0, 0
	for {
		in.left = most
		t, err := d.Token()
		if errors.Is(err, io.EOF) && depth == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case xml.StartElement:
			if depth == 1 && t.Name.Local == "package" {
				if packages++; packages > maxListPackage {
					return fmt.Errorf("the list has more than %d packages", maxListPackage)
				}
				if err := each(func(v any) error { return d.DecodeElement(v, &t) }); err != nil {
					return err
				}
				continue
			}
			depth++
		case xml.EndElement:
			depth--
		}
	}
}

// budget limits the bytes read until it is refilled.
type budget struct {
	r          io.Reader
	most, left int
}

// Read implements io.Reader.
func (b *budget) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("one element has more than %d MiB", b.most>>20)
	}
	return n, err
}

// readPrimary reads the packages of one architecture from primary.xml.
func readPrimary(r io.Reader, arch, base string, inBase func(name string) bool,
	add func(*packages.Package) error,
) error {
	share := sharing{}
	return elements(r, maxPrimary, func(decode func(any) error) error {
		var x xmlPackage
		if err := decode(&x); err != nil {
			return err
		}
		if x.Type != "rpm" || x.Arch != arch && x.Arch != "noarch" {
			return nil
		}
		p := &packages.Package{
			Name: x.Name, Version: evr(x.Version.Epoch, x.Version.Version, x.Version.Release), Arch: share.text(x.Arch),
			Base:     inBase(x.Name),
			Requires: share.text(lines(x.Format.Requires)), Recommends: share.text(lines(x.Format.Recommends)),
			Conflicts: share.text(lines(x.Format.Conflicts)),
		}
		p.Size, _ = strconv.ParseInt(x.Size.Package, 10, 64) // Check refuses 0
		if err := x.place(p, base); err != nil {
			p.Unusable = fmt.Errorf("package %.60q: %w", p.Name, err)
		}
		if strings.Contains(x.Version.Release, ".module") { // of a module stream, which a system must enable first
			p.Rank = 1
		}
		for _, e := range x.Format.Provides.Entries {
			if e.Name == x.Name { // every package provides itself
				continue
			}
			r := e.relation()
			r.Name, r.Version = share.text(r.Name), share.text(r.Version)
			p.Provides = append(p.Provides, r)
		}
		for _, f := range x.Format.Files {
			p.Provides = append(p.Provides, packages.Relation{Name: share.text(f.Path)})
		}
		if !p.Check() {
			return nil
		}
		return add(p)
	})
}

// place sets the address of a package's file, and refuses what only matters if the package is chosen.
func (x *xmlPackage) place(p *packages.Package, base string) (err error) {
	if p.Address, err = x.Location.address(base); err != nil {
		return err
	}
	var strong bool
	p.Sum, strong = x.Checksum.sum()
	switch {
	case !strings.HasSuffix(x.Location.Href, ".rpm"):
		return fmt.Errorf("invalid file %.60q", x.Location.Href)
	case !strong:
		return fmt.Errorf("it has a checksum of kind %.20q, but only sha256 and sha512 are accepted", x.Checksum.Type)
	}
	for _, all := range []xmlEntries{x.Format.Requires, x.Format.Recommends, x.Format.Conflicts} {
		if err := all.check(); err != nil {
			return err
		}
	}
	return nil
}

// sharing deduplicates texts that many packages have.
type sharing map[string]string

func (s sharing) text(t string) string {
	if have, ok := s[t]; ok {
		return have
	}
	s[t] = t
	return t
}

func evr(epoch, version, release string) string {
	if release != "" {
		version += "-" + release
	}
	if epoch != "" && epoch != "0" {
		version = epoch + ":" + version
	}
	return version
}

func (e xmlEntry) relation() packages.Relation {
	op := map[string]string{"LT": "<", "LE": "<=", "EQ": "=", "GE": ">=", "GT": ">"}[e.Flags]
	if op == "" {
		return packages.Relation{Name: e.Name}
	}
	return packages.Relation{Name: e.Name, Op: op, Version: evr(e.Epoch, e.Version, e.Release)}
}

// check refuses names and versions that lines cannot represent.
func (x xmlEntries) check() error {
	for _, e := range x.Entries {
		if r := e.relation(); !packages.IsCapability(r.Name) || r.Op != "" && !packages.IsCapability(r.Version) {
			return fmt.Errorf("invalid dependency %.80q", r.String())
		}
	}
	return nil
}

// lines formats entries for Format: name, comparison and version, separated by tabs.
func lines(x xmlEntries) string {
	var b strings.Builder
	for _, e := range x.Entries {
		r := e.relation()
		b.WriteString(r.Name)
		if r.Op != "" {
			b.WriteString("\t" + r.Op + "\t" + r.Version)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// readFilelists reads filelists.xml and calls found for each wanted path of a package.
func readFilelists(r io.Reader, wanted func(path string) bool, found func(name, version, arch, path string)) error {
	return elements(r, maxFilelists, func(decode func(any) error) error {
		var x struct {
			Name    string `xml:"name,attr"`
			Arch    string `xml:"arch,attr"`
			Version struct {
				Epoch   string `xml:"epoch,attr"`
				Version string `xml:"ver,attr"`
				Release string `xml:"rel,attr"`
			} `xml:"version"`
			Files []xmlFile `xml:"file"`
		}
		if err := decode(&x); err != nil {
			return err
		}
		for _, f := range x.Files {
			if wanted(f.Path) {
				found(x.Name, evr(x.Version.Epoch, x.Version.Version, x.Version.Release), x.Arch, f.Path)
			}
		}
		return nil
	})
}
