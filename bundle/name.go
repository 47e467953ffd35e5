package bundle

// BaseName returns the base name for the files beside a bundle: NAME.kkb. path may be a bundle in one file, or any name
// of a bundle in parts that Open accepts.
func BaseName(path string) string {
	if base, parts := locate(path); parts {
		return base
	}
	return path
}
