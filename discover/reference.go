package discover

import (
	"strings"

	"github.com/distribution/reference"

	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// noImage is the text of a doubt about an empty image, so that excludeImages can name it.
const noImage = "empty image"

// Reasons for a doubt.
const (
	whyEmpty      = "the image is empty"
	whyTemplate   = "it is filled in elsewhere"
	whyInjected   = "an admission webhook fills it in"
	whyInvalid    = "it is no image reference"
	whyBlanks     = "blanks or a line break surround it, which Kubernetes refuses"
	whyUnknown    = "it looks like an image, in an unknown place"
	whyNoRegistry = "it looks like an image, but names no registry"
	whyNoTag      = "it looks like an image, but has no tag"
	whyPort       = "it is an image or an address"
	whyListed     = "the chart lists it, and nothing that these values render has it"
	whyController = "its controller chooses an image"
	whyChart      = "its controller fetches it, and its images were not searched: write it under charts"
)

// maxReference bounds a reference: a name has at most 255 bytes, a tag 128 (distribution/reference), a digest 71.
const maxReference = 512

// field reads a value that can only be an image. It returns a fully qualified reference, or the reason that it is none.
func field(s string) (ref, why string) {
	switch {
	case strings.TrimSpace(s) == "":
		return "", whyEmpty
	case hasTemplate(s):
		return "", whyTemplate
	case s == "auto":
		return "", whyInjected // Istio's gateways: its webhook sets the proxy's image
	case len(s) > maxReference:
		return "", whyInvalid
	}
	ref, err := scalar.ImageName(s)
	if err != nil && strings.TrimSpace(s) != s {
		if _, err := scalar.ImageName(strings.TrimSpace(s)); err == nil {
			return "", whyBlanks
		}
	}
	if err != nil {
		return "", whyInvalid
	}
	return ref, ""
}

func hasTemplate(s string) bool {
	return strings.Contains(s, "{{") || strings.Contains(s, "$(") || strings.Contains(s, "${") ||
		strings.Contains(s, "<no value>")
}

// full returns the reference of a text that names a registry, a repository and a tag or digest, and can hardly be
// anything else.
func full(s string) (ref string, ok bool) {
	host, rest, slash := strings.Cut(s, "/")
	if !slash || len(s) > maxReference || !versioned(rest) || !isRegistry(host) {
		return "", false
	}
	ref, err := scalar.ImageName(s)
	return ref, err == nil
}

// isRegistry reports whether host is a valid DNS name with a dot or a port, as in references.
func isRegistry(host string) bool {
	name, port, hasPort := strings.Cut(host, ":")
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || strings.HasPrefix(l, "-") || strings.ContainsAny(l, "_") {
			return false
		}
	}
	if hasPort {
		return port != "" && strings.Trim(port, "0123456789") == ""
	}
	top := labels[len(labels)-1]
	return len(labels) > 1 && len(top) > 1 && strings.Trim(strings.ToLower(top), "abcdefghijklmnopqrstuvwxyz") == ""
}

// versioned reports whether a reference has a tag or a digest.
func versioned(s string) bool {
	return strings.Contains(s, "@sha256:") || strings.LastIndexByte(s, ':') > strings.LastIndexByte(s, '/')
}

// withoutTag returns the repository of a fully qualified reference without a digest.
func withoutTag(ref string) string {
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

// couldBe reports whether a text in a field named image, or similar, deserves a question, and the reason for the doubt.
func couldBe(s string) (why string, ok bool) {
	if len(s) > maxReference || strings.Contains(s, "://") || strings.HasPrefix(s, "/") || strings.HasPrefix(s, ".") {
		return "", false
	}
	if _, err := reference.ParseNormalizedNamed(s); err != nil {
		return "", false
	}
	host, rest, slash := strings.Cut(s, "/")
	switch {
	case !slash && !versioned(s):
		return "", false // a single word may be any name
	case !versioned(s):
		return whyNoTag, true
	case slash && isRegistry(host) && rest != "":
		return whyUnknown, true
	}
	return whyNoRegistry, true
}

// isPort reports whether a reference's tag may be a port number.
func isPort(ref string) bool {
	tag := ref[len(withoutTag(ref)):]
	return len(tag) > 2 && len(tag) <= 6 && strings.Trim(tag[1:], "0123456789") == ""
}
