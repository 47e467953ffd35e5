package transfer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// A Plan lists the wanted files of a host.
type Plan struct {
	Files []PlannedFile `json:"files"`
	// Registries are asked for content, one after the other, before the other side sends it.
	Registries []Registry `json:"registries,omitempty"`
}

// A PlannedFile is content, by its digest, with its place: Path for the whole, or the members' own.
type PlannedFile struct {
	// Name is the display name, for messages.
	Name string `json:"name"`
	// Repository has the content in registries; "" if none has it.
	Repository string `json:"repository,omitempty"`
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Path is the place of the content; "" for an archive to unpack.
	Path string      `json:"path,omitempty"`
	Mode fs.FileMode `json:"mode,omitempty"`
	// Unpack are the wanted members of a tar archive, with or without gzip.
	Unpack []Member `json:"unpack,omitempty"`
}

// A Member is a regular file in an archive.
type Member struct {
	// Name is the name in the archive; a leading ./ there and here makes no difference. A leading */ matches any one
	// directory: archives of releases often have one named after the version.
	Name string      `json:"name"`
	Path string      `json:"path"`
	Mode fs.FileMode `json:"mode"`
}

// A Summary is the outcome of a Send.
type Summary struct {
	// Changed are the changed paths, in the order of the plan.
	Changed []string `json:"changed"`
	// Sent is the number of content bytes sent to the host.
	Sent int64 `json:"sent"`
}

// Limits of a plan.
const (
	maxFiles   = 1000
	maxMembers = 10000
	maxSize    = 1 << 40
	maxName    = 4096
)

const (
	digestPrefix = "sha256:"
	anyDir       = "*/"
)

// roots are the permitted directories for files, relative to /. K3s loads its image archive from no other place.
func roots() []string {
	return []string{"usr/local", "opt", "etc", stateDir, "var/lib/rancher/k3s/agent/images"}
}

// check refuses an implausible plan.
func (p Plan) check() error {
	if len(p.Files) > maxFiles {
		return fmt.Errorf("the plan has %d files, the limit is %d", len(p.Files), maxFiles)
	}
	if err := p.checkRegistries(); err != nil {
		return err
	}
	var errs []error
	at := map[string]bool{}
	sizes := map[string]int64{}
	members := 0
	for _, f := range p.Files {
		members += len(f.Unpack)
		if err := f.check(at); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Name, err))
		}
		if size, ok := sizes[f.Digest]; ok && size != f.Size {
			errs = append(errs, fmt.Errorf("%s: %s has %d bytes here and %d there", f.Name, f.Digest, f.Size, size))
		}
		sizes[f.Digest] = f.Size
	}
	if members > maxMembers {
		errs = append(errs, fmt.Errorf("the plan has %d archive members, the limit is %d", members, maxMembers))
	}
	return errors.Join(errs...)
}

func (f PlannedFile) check(at map[string]bool) error {
	switch {
	case !validDigest(f.Digest):
		return fmt.Errorf("%q is not a SHA-256 digest", f.Digest)
	case f.Size < 0 || f.Size > maxSize:
		return fmt.Errorf("a size of %d bytes is not possible", f.Size)
	case (f.Path == "") == (len(f.Unpack) == 0):
		return errors.New("it needs either a path or members to unpack")
	case f.Path != "":
		return checkTarget(f.Path, f.Mode, at)
	}
	names := map[string]bool{}
	for _, m := range f.Unpack {
		if m.Name == "" || len(m.Name) > maxName {
			return errors.New("a member has no name, or one that is too long")
		}
		if name := memberName(m.Name); names[name] {
			return fmt.Errorf("member %s is there twice", m.Name)
		}
		names[memberName(m.Name)] = true
		if err := checkTarget(m.Path, m.Mode, at); err != nil {
			return err
		}
	}
	return nil
}

func validDigest(d string) bool {
	digits, ok := strings.CutPrefix(d, digestPrefix)
	if !ok || len(digits) != 64 || strings.ToLower(digits) != digits {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}

func memberName(name string) string { return strings.TrimPrefix(name, "./") }

func checkTarget(target string, mode fs.FileMode, at map[string]bool) error {
	if !path.IsAbs(target) || path.Clean(target) != target || len(target) > maxName || strings.ContainsRune(target, 0) {
		return fmt.Errorf("%q is not an absolute path", target)
	}
	if mode&^fs.ModePerm != 0 || mode&0o400 == 0 {
		return fmt.Errorf("%s: mode %v is not a file's permissions", target, mode)
	}
	if rootOf(target) == "" {
		return fmt.Errorf("%s is not below /%s", target, strings.Join(roots(), ", /"))
	}
	if strings.HasPrefix(target, Dir+"/") {
		return fmt.Errorf("%s is where the helper keeps its own files", target)
	}
	if at[target] {
		return fmt.Errorf("%s is there twice", target)
	}
	at[target] = true
	return nil
}

// rootOf returns the root that contains a target, "" if none.
func rootOf(target string) string {
	for _, r := range roots() {
		if strings.HasPrefix(target, "/"+r+"/") {
			return r
		}
	}
	return ""
}

// stateDir belongs to kkbundle, relative to /.
const stateDir = "var/lib/kkbundle"

const receiveDir = stateDir + "/receive"

// Dir is the directory of a host that keeps received content.
const Dir = "/" + receiveDir

// A Registry may have content of a plan.
type Registry struct {
	Address string `json:"address"`      // host[:port]
	CA      string `json:"ca,omitempty"` // PEM; the host's own authorities without it
	// Authorization is the header for the login, "" without one.
	Authorization string `json:"authorization,omitempty"`
}

const maxRegistries = 100

// checkRegistries refuses what cannot be part of an address.
func (p Plan) checkRegistries() error {
	if len(p.Registries) > maxRegistries {
		return fmt.Errorf("the plan has %d registries, the limit is %d", len(p.Registries), maxRegistries)
	}
	for _, r := range p.Registries {
		if r.Address == "" || strings.ContainsAny(r.Address, "/?#@ ") {
			return fmt.Errorf("%q is not the address of a registry", r.Address)
		}
	}
	for _, f := range p.Files {
		if f.Repository != "" && (path.Clean(f.Repository) != f.Repository || strings.ContainsAny(f.Repository, "?#%") ||
			!fs.ValidPath(f.Repository)) {
			return fmt.Errorf("%s: %q is not a repository", f.Name, f.Repository)
		}
	}
	return nil
}

// repository returns the repository with content, "" if none has it.
func (p Plan) repository(digest string) string {
	for _, f := range p.Files {
		if f.Digest == digest && f.Repository != "" {
			return f.Repository
		}
	}
	return ""
}
