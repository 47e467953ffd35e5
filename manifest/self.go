package manifest

import (
	"slices"

	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// ProgramName is the name of kkbundle's own program in a bundle.
const ProgramName = "kkbundle"

// Self says that the bundle carries kkbundle's own program. In YAML it is true for the program that builds, or a
// mapping that has it for other platforms.
type Self struct {
	// On is the short form.
	On bool `yaml:"-"`
	// URL and Path are as those of a File.
	URL  string `yaml:"url,omitempty" doc:"https://… of a release of kkbundle; {os} {arch} {x86arch} stand for those of each platform."`
	Path string `yaml:"path,omitempty" local:"machine" doc:"A local program instead of a URL, relative to the manifest; same placeholders."`
	// SHA256 and Checksums are as those of a File.
	SHA256    Sums   `yaml:"sha256,omitempty" doc:"Expected sha256 by platform, or one for a program of one platform."`
	Checksums string `yaml:"checksums,omitempty" doc:"Address of the release's checksums: one hash, or lines of hash and file name."`
	// Platforms are those of URL or Path; none is all of the bundle's.
	Platforms []string `yaml:"platforms,omitempty" doc:"Platforms of this program, also others than the bundle's, such as darwin/arm64. The program that builds is taken for the rest. Default: the bundle's."`
}

// SetOn implements document.Switch.
func (s *Self) SetOn(on bool) { s.On = on }

// MarshalYAML writes the short form if possible.
func (s Self) MarshalYAML() (any, error) {
	if s.On {
		return true, nil
	}
	type plain Self
	return plain(s), nil
}

// file returns the file of URL or Path.
func (s Self) file() File {
	return File{
		Name: ProgramName, URL: s.URL, Path: s.Path, SHA256: s.SHA256, Checksums: s.Checksums, Platforms: s.Platforms,
		Mode: 0o755,
	}
}

// A Program is kkbundle's own program for a platform.
type Program struct {
	Platform string
	// File has the program; Builds means that it is the one that builds, which no file names.
	File   File
	Builds bool
}

// Ref returns the item's io.kkbundle.ref.
func (p Program) Ref() string {
	if p.Builds {
		return localPrefix + ProgramName
	}
	return FileURL(p.File, p.Platform)
}

// Programs returns kkbundle's own programs that the bundle carries: for its platforms, and for those under self.
func (b *Bundle) Programs() []Program {
	s := b.Self
	given := s.URL+s.Path != ""
	if !given && !s.On {
		return nil
	}
	var list []Program
	for i, p := range slices.Concat(b.Platforms, s.Platforms) {
		if i >= len(b.Platforms) && slices.Contains(b.Platforms, p) {
			continue
		}
		builds := !given || len(s.Platforms) > 0 && !slices.Contains(s.Platforms, p)
		one := Program{Platform: p, Builds: builds}
		if !builds {
			one.File = s.file()
		}
		list = append(list, one)
	}
	return list
}

// self checks the program under self.
func (c bundleChecker) self(b *Bundle) {
	s := &b.Self
	c.Platforms("self.platforms", s.Platforms)
	f := s.file()
	switch {
	case s.URL+s.Path != "":
		c.address("self", &f)
		c.eachPlatform(&f, f.PlatformsIn(b.Platforms))
		c.sums("self", &f)
		s.SHA256 = f.SHA256
	case !s.On && len(s.Platforms)+len(s.SHA256)+len(s.Checksums) > 0:
		c.Add("self", "has no address; write url or path, or self: true for the program that builds")
	}
}

// eachPlatform refuses one program for several platforms.
func (c bundleChecker) eachPlatform(f *File, platforms []string) {
	at, text := "self.path", f.Path
	if f.URL != "" {
		at, text = "self.url", f.URL
	}
	of := map[string]string{}
	for _, p := range platforms {
		place := scalar.Expand(text, p)
		if other := of[place]; other != "" && other != p {
			c.Add(at, "names one program for %s and %s; write {os} and {arch} in it, or platforms: with the only one", other, p)
			return
		}
		of[place] = p
	}
}
