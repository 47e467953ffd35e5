package serve

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kkbundle/kkbundle/registry/serve/ospkg"
)

// yum serves RPM packages as repositories for dnf, yum and zypper, with metadata like createrepo_c's.
func (s *Server) yum(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	s.packages(w, r, sh, yumFormat())
}

func yumFormat() *packageFormat {
	return &packageFormat{
		area: "/yum/", suffix: yumSuffix,
		list:     func(sh *snapshot) *lazy[*tree] { return &sh.rpmsOf },
		meta:     yumMeta,
		describe: describeRPM,
		lists: func(n int) []around {
			var all []around
			for i, element := range []string{"metadata", "filelists", "otherdata"} {
				space := []string{"common", "filelists", "other"}[i]
				all = append(all, around{
					fmt.Sprintf("%s<%s xmlns=\"http://linux.duke.edu/metadata/%s\" xmlns:rpm=\"%s\" packages=\"%d\">\n",
						xml.Header, element, space, rpmSpace, n),
					"</" + element + ">\n",
				})
			}
			return all
		},
		finish: yumFiles,
		howTo: func(address string) (file, content string, commands []string) {
			file = "kkbundle.repo"
			content = "[kkbundle]\nname=kkbundle\nbaseurl=" + address + "\nenabled=1\n" +
				"# Packages are checked against the digests of this server's bundle. With gpgcheck=1 their makers' signatures\n" +
				"# are checked too, if this host has the keys.\ngpgcheck=0\nrepo_gpgcheck=0\nmodule_hotfixes=1\n"
			return file, content, []string{
				"curl -fsSo /etc/yum.repos.d/" + file + " " + quote(address+file),
				"dnf makecache",
			}
		},
	}
}

const rpmSpace = "http://linux.duke.edu/metadata/rpm"

func yumMeta(path string) (dir, file string, ok bool) {
	i := strings.LastIndex("/"+path, "/repodata/")
	if i < 0 {
		return "", "", false
	}
	return path[:i], path[i:], true
}

// A package's elements in primary.xml, filelists.xml and other.xml, in the order of createrepo_c.
type (
	xmlVersion struct {
		Epoch   string `xml:"epoch,attr"`
		Version string `xml:"ver,attr"`
		Release string `xml:"rel,attr"`
	}
	xmlPrimary struct {
		XMLName     xml.Name    `xml:"package"`
		Type        string      `xml:"type,attr"`
		Name        string      `xml:"name"`
		Arch        string      `xml:"arch"`
		Version     xmlVersion  `xml:"version"`
		Checksum    xmlChecksum `xml:"checksum"`
		Summary     string      `xml:"summary"`
		Description string      `xml:"description"`
		Packager    string      `xml:"packager"`
		URL         string      `xml:"url"`
		Time        struct {
			File  uint64 `xml:"file,attr"`
			Build uint64 `xml:"build,attr"`
		} `xml:"time"`
		Size struct {
			Package   int64  `xml:"package,attr"`
			Installed uint64 `xml:"installed,attr"`
			Archive   uint64 `xml:"archive,attr"`
		} `xml:"size"`
		Location xmlLocation `xml:"location"`
		Format   xmlFormat   `xml:"format"`
	}
	xmlLocation struct {
		Href string `xml:"href,attr"`
	}
	xmlChecksum struct {
		Type string `xml:"type,attr"`
		ID   string `xml:"pkgid,attr,omitempty"`
		Sum  string `xml:",chardata"`
	}
	xmlFormat struct {
		License   string `xml:"rpm:license"`
		Vendor    string `xml:"rpm:vendor"`
		Group     string `xml:"rpm:group"`
		BuildHost string `xml:"rpm:buildhost"`
		SourceRPM string `xml:"rpm:sourcerpm"`
		Header    struct {
			Start int64 `xml:"start,attr"`
			End   int64 `xml:"end,attr"`
		} `xml:"rpm:header-range"`
		Relations []xmlRelations
		Files     []xmlFile
	}
	xmlRelations struct {
		XMLName xml.Name
		Entries []xmlEntry `xml:"rpm:entry"`
	}
	xmlEntry struct {
		Name    string `xml:"name,attr"`
		Flags   string `xml:"flags,attr,omitempty"`
		Epoch   string `xml:"epoch,attr,omitempty"`
		Version string `xml:"ver,attr,omitempty"`
		Release string `xml:"rel,attr,omitempty"`
		Pre     string `xml:"pre,attr,omitempty"`
	}
	xmlFile struct {
		XMLName xml.Name `xml:"file"`
		Type    string   `xml:"type,attr,omitempty"`
		Path    string   `xml:",chardata"`
	}
	xmlOther struct {
		XMLName xml.Name   `xml:"package"`
		ID      string     `xml:"pkgid,attr"`
		Name    string     `xml:"name,attr"`
		Arch    string     `xml:"arch,attr"`
		Version xmlVersion `xml:"version"`
		Files   []xmlFile
		Changes []xmlChange
	}
	xmlChange struct {
		XMLName xml.Name `xml:"changelog"`
		Author  string   `xml:"author,attr"`
		Date    uint64   `xml:"date,attr"`
		Text    string   `xml:",chardata"`
	}
)

// describeRPM returns a package's element in each of the three lists.
func describeRPM(r io.ReaderAt, l leaf, location string) ([][]byte, error) {
	p, err := ospkg.ReadRPM(r, l.blob.size)
	if err != nil {
		return nil, err
	}
	sum := l.blob.digest.Encoded()
	primary := xmlPrimary{
		Type: "rpm", Name: p.Name, Arch: p.Arch, Version: xmlVersion{p.Epoch, p.Version, p.Release},
		Checksum: xmlChecksum{"sha256", "YES", sum},
		Summary:  p.Summary, Description: p.Description, Packager: p.Packager, URL: p.URL,
		Location: xmlLocation{location},
		Format: xmlFormat{
			License: p.License, Vendor: p.Vendor, Group: p.Group, BuildHost: p.BuildHost,
			SourceRPM: p.SourceRPM,
		},
	}
	primary.Time.File, primary.Time.Build = p.BuildTime, p.BuildTime
	primary.Size.Package, primary.Size.Installed, primary.Size.Archive = l.blob.size, p.Installed, p.Archive
	primary.Format.Header.Start, primary.Format.Header.End = p.HeaderStart, p.HeaderEnd
	for _, x := range []struct {
		element   string
		relations []ospkg.Relation
	}{
		{"provides", p.Provides},
		{"requires", p.Requires},
		{"conflicts", p.Conflicts},
		{"obsoletes", p.Obsoletes},
		{"suggests", p.Suggests},
		{"enhances", p.Enhances},
		{"recommends", p.Recommends},
		{"supplements", p.Supplements},
	} {
		if len(x.relations) > 0 {
			primary.Format.Relations = append(primary.Format.Relations, relations(x.element, x.relations))
		}
	}
	files := xmlOther{ID: sum, Name: p.Name, Arch: p.Arch, Version: primary.Version}
	other := files
	for _, f := range p.Files {
		one := xmlFile{Type: f.Type, Path: f.Path}
		files.Files = append(files.Files, one)
		if f.Primary() {
			primary.Format.Files = append(primary.Format.Files, one)
		}
	}
	for i := len(p.Changes) - 1; i >= 0; i-- { // oldest first
		other.Changes = append(other.Changes, xmlChange{
			Author: p.Changes[i].Author, Date: p.Changes[i].Time,
			Text: p.Changes[i].Text,
		})
	}
	return marshalAll(primary, files, other)
}

func relations(element string, all []ospkg.Relation) xmlRelations {
	x := xmlRelations{XMLName: xml.Name{Local: "rpm:" + element}}
	for _, r := range all {
		e := xmlEntry{Name: r.Name, Flags: r.Op, Epoch: r.Epoch, Version: r.Version, Release: r.Release}
		if r.Pre {
			e.Pre = "1"
		}
		x.Entries = append(x.Entries, e)
	}
	return x
}

// marshalAll writes each value on a line; bytes invalid in XML are replaced.
func marshalAll(all ...any) ([][]byte, error) {
	texts := make([][]byte, len(all))
	for i, v := range all {
		text, err := xml.Marshal(v)
		if err != nil {
			return nil, err
		}
		texts[i] = append(text, '\n')
	}
	return texts, nil
}

// yumFiles returns the lists under names that change with their content, and repomd.xml, which names them. Its times
// are constant: they would say nothing about a bundle.
func yumFiles(lists []packageList) map[string]packageFile {
	var repomd bytes.Buffer
	fmt.Fprintf(&repomd, "%s<repomd xmlns=\"http://linux.duke.edu/metadata/repo\" xmlns:rpm=\"%s\">\n <revision>1</revision>\n", xml.Header, rpmSpace)
	files := make(map[string]packageFile)
	for i, kind := range []string{"primary", "filelists", "other"} {
		d := lists[i]
		name := "repodata/" + d.sum + "-" + kind + ".xml.gz"
		files[name] = packageFile{mediaType: "application/gzip", body: []byte(d.packed)}
		fmt.Fprintf(&repomd, " <data type=\"%s\">\n  <checksum type=\"sha256\">%s</checksum>\n  <open-checksum type=\"sha256\">%s</open-checksum>\n"+
			"  <location href=\"%s\"/>\n  <timestamp>1</timestamp>\n  <size>%d</size>\n  <open-size>%d</open-size>\n </data>\n",
			kind, d.sum, d.plainSum, name, len(d.packed), d.plainSize)
	}
	repomd.WriteString("</repomd>\n")
	files["repodata/repomd.xml"] = packageFile{mediaType: "application/xml", body: repomd.Bytes()}
	return files
}
