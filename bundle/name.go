package bundle

import (
	"strings"

	"github.com/kkbundle/kkbundle/bundle/parts"
)

// EncryptedSuffix follows the name of a bundle in the name of an age file around it: NAME.kkb.age.
const EncryptedSuffix = ".age"

// BaseName returns the base name for the files beside a bundle: NAME.kkb. path may be a bundle in one file, or any name
// of a bundle in parts that Open accepts. It is the same for the encrypted bundle NAME.kkb.age: signatures are those of
// the content.
func BaseName(path string) string {
	if base, ok := parts.Locate(path); ok {
		path = base
	}
	return strings.TrimSuffix(path, EncryptedSuffix)
}

// FileName returns the default file name of a bundle: NAME-VERSION.kkb, or NAME.kkb without a version.
func FileName(name, version string) string {
	if version == "" {
		return name + ".kkb"
	}
	return name + "-" + version + ".kkb"
}
