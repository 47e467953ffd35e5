package bundle

import "github.com/kkbundle/kkbundle/bundle/parts"

// BaseName returns the base name for the files beside a bundle: NAME.kkb. path may be a bundle in one file, or any name
// of a bundle in parts that Open accepts.
func BaseName(path string) string {
	if base, ok := parts.Locate(path); ok {
		return base
	}
	return path
}

// FileName returns the default file name of a bundle: NAME-VERSION.kkb, or NAME.kkb without a version.
func FileName(name, version string) string {
	if version == "" {
		return name + ".kkb"
	}
	return name + "-" + version + ".kkb"
}
