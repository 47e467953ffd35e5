package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/trust"
)

const (
	// envTrust names the file of trusted keys; set and empty, none are.
	envTrust = "KKBUNDLE_TRUST"
	// sidecarSuffix is what a bundle's signature is called after the bundle's name.
	sidecarSuffix = ".sigstore.json"
	// maxSidecars bounds how many signatures of one bundle are read.
	maxSidecars = 32
)

// trustOptions say whose bundles are used.
type trustOptions struct {
	keys, signatures []string // files
	require          bool
}

// addTrust adds the flags of commands that use bundles.
func (g *globals) addTrust(f *pflag.FlagSet) {
	o := &g.trust
	f.StringArrayVar(&o.keys, "trust", nil, "`file` of public keys (PEM, such as cosign.pub), one of which must have signed the bundle (repeated; default $"+envTrust+", or kkbundle/trust.pem in the user's configuration)")
	f.StringArrayVar(&o.signatures, "signature", nil, "the `file` with the bundle's signature, where it does not lie beside the bundle (repeated)")
	f.BoolVar(&o.require, "require-signature", false, "refuse a bundle that is not signed")
}

// A signatureError says that nobody who is trusted signed a bundle.
type signatureError struct {
	bundle   string
	identity digest.Digest
	keys     []*trust.PublicKey
	tried    []error // what was found and is no good; none where nothing was
	place    string  // where a signature was looked for
}

// Error names the bundle, every signature that was found, and the keys that would do.
func (e *signatureError) Error() string {
	var trusted []string
	for _, k := range e.keys {
		trusted = append(trusted, k.Fingerprint().String())
	}
	const most = 5
	if n := len(trusted); n > most {
		trusted = append(trusted[:most], fmt.Sprintf("%d more", n-most))
	}
	what := "is not signed: " + e.place
	if len(e.tried) > 0 {
		what = fmt.Sprintf("(%s) has no good signature: %s", e.identity, joined(e.tried))
	}
	return fmt.Sprintf("%s %s; trusted: %s", e.bundle, what, strings.Join(trusted, ", "))
}

// Hint says what to do.
func (e *signatureError) Hint() string {
	if len(e.tried) == 0 {
		return "bring the signature from where the bundle was built and put it beside the bundle, or name it with --signature"
	}
	return "use a bundle from who you trust; if this one is, have it signed by them (kkbundle sign), or add the signer's public key to those that are trusted"
}

func joined(list []error) string {
	texts := make([]string, len(list))
	for i, err := range list {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// signed says which key vouches for a bundle.
type signed struct {
	Key  digest.Digest `json:"key"`  // fingerprint
	Path string        `json:"path"` // of the signature
}

// checkTrust looks for a signature of a bundle by a trusted key. It returns nil without an error where no key is trusted, and,
// with a warning, where nothing signs the bundle and nothing has to. The index must be that of the handle that is read from
// afterwards: its digests are what the signature vouches for.
func (g *globals) checkTrust(path string, index bundle.Index) (*signed, error) {
	n := signaturesOf{name: bundleName(path), read: build.ReadFile, list: func() ([]string, error) { return g.trust.sidecars(path) }}
	n.none = "standard input brings no signature, name it with --signature"
	if path != standardStream {
		n.none = fmt.Sprintf("there is no %s", sidecarName(path, ""))
	}
	return g.checkSignatures(n, index)
}

// signaturesOf are those that came with a bundle.
type signaturesOf struct {
	name string // of the bundle
	list func() ([]string, error)
	read func(file string) ([]byte, error)
	none string // what to say where there are none
}

// checkSignatures is checkTrust for a bundle wherever it is.
func (g *globals) checkSignatures(n signaturesOf, index bundle.Index) (*signed, error) {
	keys, err := g.trust.load()
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		if g.trust.require {
			return nil, usage.Errorf("--require-signature needs to know whose: name a public key with --trust")
		}
		return nil, nil //nolint:nilnil // nobody is asked to vouch
	}
	artifact, err := index.Marshal()
	if err != nil {
		return nil, err
	}
	e := &signatureError{bundle: n.name, identity: digest.FromBytes(artifact), keys: keys}
	files, err := n.list()
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		data, err := n.read(file)
		var key *trust.PublicKey
		if err == nil {
			key, err = checkSidecar(keys, file, data, artifact)
		}
		if err == nil {
			g.Logger().Info("signature checked", "bundle", n.name, "signature", file, "key", key.Fingerprint())
			return &signed{Key: key.Fingerprint(), Path: file}, nil
		}
		e.tried = append(e.tried, err)
	}
	if len(files) == 0 {
		e.place = n.none
	}
	if len(e.tried) > 0 || g.trust.require {
		return nil, e
	}
	g.Warn(fmt.Sprintf("%s is not signed (%s), so nobody vouches for what it holds; --require-signature refuses it", e.bundle, e.place))
	return nil, nil //nolint:nilnil // as documented
}

// load reads the keys that are trusted: those that flags name, or the user's own.
func (o *trustOptions) load() ([]*trust.PublicKey, error) {
	files := o.keys
	if len(files) == 0 {
		own, err := ownTrust()
		if err != nil || own == "" {
			return nil, err
		}
		files = []string{own}
	}
	var keys []*trust.PublicKey
	for _, file := range files {
		data, err := build.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("trusted keys: %w", err)
		}
		list, err := trust.ParsePublicKeys(data)
		if err != nil {
			return nil, &build.InputError{Err: fmt.Errorf("trusted keys: %s: %w", file, err)}
		}
		keys = append(keys, list...)
	}
	return keys, nil
}

// ownTrust is the file of keys that the user trusts without a flag, "" if there is none.
func ownTrust() (string, error) {
	if file, ok := os.LookupEnv(envTrust); ok {
		return file, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", nil //nolint:nilerr // who has no place for a configuration has none
	}
	file := filepath.Join(dir, "kkbundle", "trust.pem")
	_, err = os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil: // it may be there, so nothing is used without it
		return "", &build.InputError{Err: fmt.Errorf("trusted keys: %w: name another file with $%s, or none with an empty one", err, envTrust)}
	}
	return file, nil
}

// sidecars lists the signatures of a bundle: those that flags name, or those beside it, its own first.
func (o *trustOptions) sidecars(path string) ([]string, error) {
	if len(o.signatures) > 0 || path == standardStream {
		return o.signatures, nil
	}
	base := bundle.BaseName(path)
	entries, err := os.ReadDir(filepath.Dir(base))
	if err != nil {
		// A directory that only lets its files be opened by name. Not to find the others only makes fewer signatures.
		entries = nil
	}
	var files []string
	if own := sidecarName(path, ""); exists(own) {
		files = append(files, own)
	}
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), filepath.Base(base)+".")
		if name, ok2 := strings.CutSuffix(name, sidecarSuffix); ok && ok2 && signerName(name) {
			files = append(files, filepath.Join(filepath.Dir(base), entry.Name()))
		}
	}
	if len(files) > maxSidecars {
		return nil, &build.InputError{Err: fmt.Errorf("%s has %d signatures beside it; at most %d are read: name one with --signature", path, len(files), maxSidecars)}
	}
	return files, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sidecarName is where the signature of a bundle lies: NAME.kkb.sigstore.json, or NAME.kkb.SIGNER.sigstore.json for one more.
func sidecarName(path, signer string) string {
	if signer != "" {
		signer = "." + signer
	}
	return bundle.BaseName(path) + signer + sidecarSuffix
}

// signerName reports whether a name can stand in a signature's file name. It begins with a letter, so that NAME.kkb.[0-9]* are
// parts and nothing else.
func signerName(s string) bool {
	const most = 63
	return s != "" && len(s) <= most && s[0] >= 'a' && s[0] <= 'z' && !strings.ContainsFunc(s, func(r rune) bool {
		return !slices.Contains([]rune("abcdefghijklmnopqrstuvwxyz0123456789-"), r)
	})
}

// checkSidecar returns the key that made the signature that a file has. The error names the file.
func checkSidecar(keys []*trust.PublicKey, file string, data, artifact []byte) (*trust.PublicKey, error) {
	key, err := trust.VerifyBlob(keys, data, artifact)
	switch {
	case errors.Is(err, trust.ErrOtherDigest):
		return nil, fmt.Errorf("%s is of another bundle, or of this one as it was before it was built again (%w)", file, err)
	case errors.Is(err, trust.ErrWrongKey):
		if by := trust.SignerOf(data); by != "" && !slices.ContainsFunc(keys, func(k *trust.PublicKey) bool { return k.Fingerprint() == by }) {
			return nil, fmt.Errorf("%s is by another key (%s, as it says)", file, by)
		}
		return nil, fmt.Errorf("%s was made by none of the trusted keys", file)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// bundleName is what a bundle is called in messages.
func bundleName(path string) string {
	if path == standardStream {
		return "the bundle"
	}
	return path
}
