package bundle

// BaseName returns what the files beside a bundle are named after: NAME.kkb, for a bundle in one file, and for one in parts by
// any of the names that Open takes.
func BaseName(path string) string {
	if base, parts := locate(path); parts {
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
