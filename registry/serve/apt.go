package serve

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kkbundle/kkbundle/registry/serve/ospkg"
)

// apt serves Debian packages as flat repositories (sources.list(5)): `deb [trusted=yes] http://HOST/apt/ /`. Release
// has no signature, since a key made here would prove nothing: packages are authenticated by the bundle's identity,
// which covers their digests, and the server by TLS.
func (s *Server) apt(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	s.packages(w, r, sh, aptFormat())
}

func aptFormat() *packageFormat {
	return &packageFormat{
		area: "/apt/", suffix: aptSuffix,
		list:     func(sh *snapshot) *lazy[*tree] { return &sh.debsOf },
		meta:     aptMeta,
		describe: describeDeb,
		lists:    func(int) []around { return make([]around, 1) },
		finish:   aptFiles,
		howTo: func(address string) (file, content string, commands []string) {
			content = "# Packages are checked against the digests of this server's bundle; there is no key to sign them with.\n" +
				"Types: deb\nURIs: " + address + "\nSuites: /\nTrusted: yes\n"
			file = "kkbundle.sources"
			return file, content, []string{
				"curl -fsSo /etc/apt/sources.list.d/" + file + " " + quote(address+file),
				"apt-get update",
			}
		},
	}
}

const byHash = "by-hash/SHA256/"

func aptMeta(path string) (dir, file string, ok bool) {
	if i := strings.LastIndex("/"+path, "/"+byHash); i >= 0 {
		return path[:i], path[i:], true
	}
	dir, file, _ = cutLast("/" + path)
	switch file {
	case "Packages", "Packages.gz", "Release":
		return strings.TrimPrefix(dir+"/", "/"), file, true
	}
	return "", "", false
}

// describeDeb returns a package's paragraph in Packages.
func describeDeb(r io.ReaderAt, l leaf, location string) ([][]byte, error) {
	d, err := ospkg.ReadDeb(r, l.blob.size)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(d.Control)
	fmt.Fprintf(&b, "Filename: %s\nSize: %d\nSHA256: %s\n\n", location, l.blob.size, l.blob.digest.Encoded())
	return [][]byte{b.Bytes()}, nil
}

// aptFiles returns the lists and their checksums. The date is constant: apt ignores a Release older than its own, and a
// bundle may be replaced by an older one.
func aptFiles(lists []packageList) map[string]packageFile {
	d := lists[0]
	release := fmt.Sprintf("Origin: kkbundle\nLabel: kkbundle\nDate: Thu, 01 Jan 1970 00:00:00 UTC\nAcquire-By-Hash: yes\nSHA256:\n %s %d Packages\n %s %d Packages.gz\n",
		d.plainSum, d.plainSize, d.sum, len(d.packed))
	plain := packageFile{mediaType: "text/plain; charset=utf-8", unpack: &d}
	packed := packageFile{mediaType: "application/gzip", body: []byte(d.packed)}
	return map[string]packageFile{
		"Release":  {mediaType: "text/plain; charset=utf-8", body: []byte(release)},
		"Packages": plain, byHash + d.plainSum: plain,
		"Packages.gz": packed, byHash + d.sum: packed,
	}
}
