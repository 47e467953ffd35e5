package manifest

import (
	"math"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/git/refname"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// GitRepository is a Git repository, carried with some of its refs and what they reach.
type GitRepository struct {
	// URL is the address that git clone takes.
	URL string `yaml:"url" kk:"required" doc:"https://… address that git clone takes."`
	// Name is that of the repository in the bundle; RepositoryName has the default.
	Name string `yaml:"name,omitempty" doc:"Name at the site, NAME.git. Default: the last part of url, without .git."`
	// Refs are names or patterns of branches and tags; none is the default branch.
	Refs []string `yaml:"refs,omitempty" doc:"Branches and tags, such as main and v1.*; * matches any text, and refs/tags/NAME means tags only. Default: the default branch."`
	// Depth is the number of commits of each history, 0 for all.
	Depth int `yaml:"depth,omitempty" doc:"Commits of each history, such as 1 for the newest only. Default: all."`
	// ImagesListed means that the YAML of the repository is not searched, because images lists all of its images.
	ImagesListed bool   `yaml:"imagesListed,omitempty" doc:"Do not search its YAML for images: all of them are listed under images."`
	Group        string `yaml:"group,omitempty" doc:"Group of this repository."`
}

// SetShort implements document.Shorthand.
func (r *GitRepository) SetShort(text string) { r.URL = text }

// MarshalYAML writes the short form if possible.
func (r GitRepository) MarshalYAML() (any, error) {
	if r.Name == "" && len(r.Refs) == 0 && r.Depth == 0 && !r.ImagesListed && r.Group == "" {
		return r.URL, nil
	}
	type plain GitRepository
	return plain(r), nil
}

// Ref returns the item's io.kkbundle.ref: the address without slashes at its end.
func (r GitRepository) Ref() string { return strings.TrimRight(r.URL, "/") }

// RepositoryName returns the name of the repository, without .git.
func (r GitRepository) RepositoryName() string {
	if r.Name != "" {
		return r.Name
	}
	u, err := url.Parse(r.Ref())
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(path.Base(u.Path), ".git")
}

// Fits reports whether a pin may be one of the repository as the manifest describes it.
func (r GitRepository) Fits(pin Pin) bool {
	if pin.Git == nil || pin.Git.Depth != r.Depth {
		return false
	}
	if len(r.Refs) == 0 {
		return len(pin.Git.Refs) == 1 && pin.Git.Refs[0].Name == pin.Git.Head
	}
	for _, pattern := range r.Refs {
		if !slices.ContainsFunc(pin.Git.Refs, func(l LockedRef) bool { return refname.Matches(pattern, l.Name) }) {
			return false
		}
	}
	return !slices.ContainsFunc(pin.Git.Refs, func(l LockedRef) bool { return !r.Wants(l.Name) })
}

// Wants reports whether a pattern under refs means a ref.
func (r GitRepository) Wants(ref string) bool {
	return slices.ContainsFunc(r.Refs, func(pattern string) bool { return refname.Matches(pattern, ref) })
}

// LockedGit is what a Git repository was resolved to.
type LockedGit struct {
	// Head is the branch that a clone checks out, "" for none.
	Head string `yaml:"head,omitempty" json:"head,omitempty" doc:"Branch that a clone checks out."`
	// Depth is that of the manifest.
	Depth int         `yaml:"depth,omitempty" json:"depth,omitempty" doc:"Commits of each history."`
	Refs  []LockedRef `yaml:"refs" json:"refs" kk:"required" doc:"Branches and tags."`
}

// LockedRef is a branch or tag with its object.
type LockedRef struct {
	Name string `yaml:"name" json:"name" kk:"required" doc:"Whole name, such as refs/heads/main."`
	// ID is a commit, or an annotated tag.
	ID string `yaml:"id" json:"id" kk:"required" doc:"Commit, or annotated tag."`
}

// repositories checks Git repositories.
func (c bundleChecker) repositories(list []GitRepository) {
	names, refs := map[string]int{}, map[string]int{}
	for i, r := range list {
		at := document.Index("git", i)
		if host, dir, ok := overSSH(r.URL); ok {
			c.Add(document.Join(at, "url"), "is an address for SSH; write https://%s/%s, and log in with netrc",
				document.Shorten(host), document.Shorten(dir))
			continue
		}
		c.Address(document.Join(at, "url"), r.URL, "https", "http")
		if u, err := url.Parse(r.URL); r.Name == "" && (err != nil || strings.Trim(u.Path, "/") == "") {
			if r.URL != "" {
				c.Add(document.Join(at, "url"), "is not the address of a repository: it has no path")
			}
			continue // the name follows from it
		}
		if strings.ContainsAny(r.URL, "?{}") {
			c.Add(document.Join(at, "url"), "the address of a repository has no query and no placeholders")
		}
		name := strings.ToLower(r.RepositoryName()) // file systems may not tell them apart
		if !scalar.IsFileName(name) || len(name) > scalar.MaxToken || strings.HasSuffix(name, ".git") {
			c.Add(document.Join(at, "name"),
				"%q is not the name of a repository; use letters, digits and . _ + - ~, a letter or digit first, without .git",
				document.Shorten(r.RepositoryName()))
		}
		if earlier, twice := document.Earlier(names, name, i); twice {
			c.Add(at, "repository %s is there twice, first on %s; give one of them another name",
				document.Shorten(r.RepositoryName()), c.Place(document.Index("git", earlier)))
		} else if earlier, twice := document.Earlier(refs, r.Ref(), i); twice {
			c.Add(at, "%s is there twice, first on %s; name all of its refs there", scalar.Shown(r.Ref()),
				c.Place(document.Index("git", earlier)))
		}
		if r.Depth < 0 || r.Depth > math.MaxInt32 {
			c.Add(document.Join(at, "depth"), "%d is not a number of commits from 1 to %d; leave depth out for the whole history",
				r.Depth, math.MaxInt32)
		}
		for j, pattern := range r.Refs {
			if err := refname.CheckPattern(pattern); err != nil {
				c.Add(document.Index(document.Join(at, "refs"), j), "%v", err)
			}
		}
	}
}

// overSSH returns host and path of an address as servers show it for SSH: ssh://USER@HOST:PORT/PATH, or USER@HOST:PATH.
func overSSH(address string) (host, dir string, ok bool) {
	if u, err := url.Parse(address); err == nil && u.Scheme == "ssh" {
		return u.Hostname(), strings.TrimPrefix(u.Path, "/"), true
	}
	_, place, hasUser := strings.Cut(address, "@")
	host, dir, ok = strings.Cut(place, ":")
	return host, dir, ok && hasUser && !strings.Contains(address, "://") && !strings.Contains(host, "/")
}

// pinnedGit checks the refs of a pin.
func (c lockChecker) pinnedGit(at string, p *Pin) {
	if (p.Git != nil) != (p.Kind == ItemGit) {
		c.Add(at, "a Git repository has git, and nothing else has it")
	}
	if p.Git == nil {
		return
	}
	at = document.Join(at, "git")
	head := p.Git.Head == ""
	for i, r := range p.Git.Refs {
		path := document.Index(document.Join(at, "refs"), i)
		if err := refname.Check(r.Name); err != nil {
			c.Add(path, "%v", err)
		}
		if !refname.IsID(r.ID) {
			c.Add(document.Join(path, "id"), "%q is not the name of an object", document.Shorten(r.ID))
		}
		if i > 0 && p.Git.Refs[i-1].Name >= r.Name {
			c.Add(path, "%s is there twice, or out of order", document.Shorten(r.Name))
		}
		head = head || r.Name == p.Git.Head
	}
	if !head {
		c.Add(document.Join(at, "head"), "%s is none of the refs", document.Shorten(p.Git.Head))
	}
	if p.Git.Depth < 0 {
		c.Add(document.Join(at, "depth"), "%d is not a depth", p.Git.Depth)
	}
}
