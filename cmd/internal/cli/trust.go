package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/proof/trust"
)

const (
	// envTrust names the variable with the file of trusted keys; "" means none.
	envTrust = "KKBUNDLE_TRUST"
	// sidecarSuffix follows the bundle's name in the name of a signature.
	sidecarSuffix = ".sigstore.json"
	// maxSidecars limits the signatures read for one bundle.
	maxSidecars = 32
)

// trustOptions are the trusted keys and signatures.
type trustOptions struct {
	keys, signatures []string // files
	require          bool
	allowOlder       bool         // accept a bundle that is older than one accepted before
	unrecorded       bool         // a dry run records nothing
	places           *trustPlaces // nil outside of tests
	said             bool         // saySudo has printed
}

// at returns the places of trust files.
func (o *trustOptions) at() trustPlaces {
	if o.places == nil {
		p := newTrustPlaces()
		o.places = &p
	}
	return *o.places
}

// addTrust adds the flags of commands that open bundles.
func (g *globals) addTrust(fs *pflag.FlagSet) { usage.Group(fs, usage.GroupTrust, g.trustFlags) }

func (g *globals) trustFlags(f *pflag.FlagSet) {
	g.addKeys(f)
	o := &g.trust
	f.StringArrayVar(&o.keys, "trust", nil,
		"`file` of public keys (PEM, such as cosign.pub, or kind Trust), one of which must have signed the bundle (repeated; default "+machineTrust+" with $"+envTrust+" or kkbundle/trust.yaml in the user's configuration)")
	f.StringArrayVar(&o.signatures, "signature", nil,
		"`file` of the bundle's signature (repeated; default beside the bundle)")
	f.BoolVar(&o.require, "require-signature", false, "refuse a bundle that is not signed")
}

// addAccept adds the flags of commands that put a bundle to use, see openAccepted.
func (g *globals) addAccept(f *pflag.FlagSet) {
	g.addTrust(f)
	usage.Group(f, usage.GroupTrust, func(f *pflag.FlagSet) {
		f.BoolVar(&g.trust.allowOlder, "allow-older", false,
			"accept a signed bundle that is older than one of its name accepted here before")
	})
}

// A signatureError means that no trusted key signed a bundle.
type signatureError struct {
	bundle   string
	identity digest.Digest
	trusted  trusted
	tried    []error // of invalid signatures
	place    string  // where signatures were searched
}

// Error lists the invalid signatures and the trusted keys.
func (e *signatureError) Error() string {
	var trusted []string
	for _, k := range e.trusted.keys {
		trusted = append(trusted, k.Fingerprint().String())
	}
	for _, n := range e.trusted.signers {
		trusted = append(trusted, n.String())
	}
	const most = 5
	if n := len(trusted); n > most {
		trusted = append(trusted[:most], fmt.Sprintf("%d more", n-most))
	}
	what := "is not signed: " + e.place
	if len(e.tried) > 0 {
		what = fmt.Sprintf("(%s) has no valid signature: %s", e.identity, joined(e.tried))
	}
	return fmt.Sprintf("%s %s; trusted: %s", e.bundle, what, strings.Join(trusted, ", "))
}

// Hint returns the remedy.
func (e *signatureError) Hint() string {
	if len(e.tried) == 0 {
		return "bring the signature from where the bundle was built and put it beside the bundle, or name it with --signature"
	}
	return "use a bundle of a trusted signer, have this one signed (kkbundle sign), or add the signer's public key to the trusted keys"
}

func joined(list []error) string {
	texts := make([]string, len(list))
	for i, err := range list {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// signed is a valid signature of a bundle.
type signed struct {
	Key digest.Digest `json:"key,omitempty"` // fingerprint
	// Identity is the subject and issuer of a signer without a key.
	Identity string `json:"identity,omitempty"`
	Path     string `json:"path"` // of the signature
}

// by names the signer.
func (s *signed) by() string {
	if s.Identity != "" {
		return "by " + s.Identity
	}
	return "with the key " + s.Key.String()
}

// checkTrust returns the valid signature of a bundle by a trusted key. It returns nil with a warning for a signed
// bundle without trusted keys, and for an unsigned one if no signature is demanded. The index must be of the handle
// that is read later: the signature covers its digests.
func (g *globals) checkTrust(path string, index bundle.Index) (*signed, error) {
	n := signaturesOf{
		name: bundleName(path), read: builder.ReadFile,
		list: func() ([]string, error) { return g.trust.sidecars(path) },
	}
	n.none = "standard input has no signature: name it with --signature"
	if path != standardStream {
		n.none = fmt.Sprintf("there is no %s", sidecarName(path, ""))
	}
	return g.checkSignatures(n, index)
}

// signaturesOf gives access to the signatures of a bundle.
type signaturesOf struct {
	name string // of the bundle
	list func() ([]string, error)
	read func(file string) ([]byte, error)
	none string // message without signatures
}

// checkSignatures is checkTrust for files and registries.
func (g *globals) checkSignatures(n signaturesOf, index bundle.Index) (by *signed, err error) {
	demands, err := g.demands()
	if err != nil {
		return nil, err
	}
	artifact, err := index.Marshal()
	if err != nil {
		return nil, err
	}
	files, err := n.list()
	if err != nil && !demands[0].empty() { // without keys, signatures are only counted
		return nil, err
	}
	for _, d := range demands {
		err = nil
		if !d.empty() {
			by, err = g.checkDemand(d, n, files, artifact)
		} else if len(files) > 0 {
			g.Alert(fmt.Sprintf("%s is signed, and no key is trusted here: its signature was not checked (%s); trust the signer's key with --trust, or in %s", n.name, files[0], g.trust.at().machine))
		}
		if err != nil {
			return nil, err
		}
	}
	return by, nil
}

// checkDemand returns the valid signature of an artifact by one of the keys.
func (g *globals) checkDemand(d trusted, n signaturesOf, files []string, artifact []byte) (*signed, error) {
	e := &signatureError{bundle: n.name, identity: digest.FromBytes(artifact), trusted: d}
	for _, file := range files {
		data, err := n.read(file)
		if err == nil {
			var by *signed
			if by, err = checkSidecar(d, file, data, artifact); err == nil {
				g.Logger().Info("signature checked", "bundle", n.name, "signature", file, "signed", by.by())
				return by, nil
			}
		}
		e.tried = append(e.tried, err)
	}
	if len(files) == 0 {
		e.place = n.none
	}
	if len(e.tried) > 0 || d.require {
		return nil, e
	}
	g.Warn(fmt.Sprintf("%s is not signed (%s), so its origin is unverified; --require-signature refuses it", e.bundle,
		e.place))
	return nil, nil //nolint:nilnil // as checkTrust documents
}

// sidecars lists the signatures of a bundle: of the flags, else beside it, NAME.kkb.sigstore.json first.
func (o *trustOptions) sidecars(path string) ([]string, error) {
	if len(o.signatures) > 0 || path == standardStream {
		return o.signatures, nil
	}
	base := bundle.BaseName(path)
	entries, err := os.ReadDir(filepath.Dir(base))
	if err != nil {
		// The directory cannot be listed: only the signature with the default name is found.
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
		return nil, &builder.InputError{Err: fmt.Errorf(
			"%s has %d signatures beside it; at most %d are read: name one with --signature", path, len(files),
			maxSidecars)}
	}
	return files, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sidecarName returns the name of a signature: NAME.kkb.sigstore.json, or NAME.kkb.SIGNER.sigstore.json.
func sidecarName(path, signer string) string {
	if signer != "" {
		signer = "." + signer
	}
	return bundle.BaseName(path) + signer + sidecarSuffix
}

// signerName reports whether s is valid as SIGNER. It begins with a letter, so that NAME.kkb.[0-9]* matches parts only.
func signerName(s string) bool {
	const most = 63
	return s != "" && len(s) <= most && s[0] >= 'a' && s[0] <= 'z' && !strings.ContainsFunc(s, func(r rune) bool {
		return !slices.Contains([]rune("abcdefghijklmnopqrstuvwxyz0123456789-"), r)
	})
}

// checkSidecar returns the signer of the signature in a file. The error names the file.
func checkSidecar(d trusted, file string, data, artifact []byte) (*signed, error) {
	keys := d.keys
	key, err := trust.VerifyBlob(keys, data, artifact)
	if errors.Is(err, trust.ErrKeyless) && len(d.signers) > 0 {
		return checkKeyless(d.signers, file, data, artifact)
	}
	switch {
	case errors.Is(err, trust.ErrOtherDigest):
		return nil, fmt.Errorf("%s is the signature of another bundle, or of an older build of this one (%w)", file,
			err)
	case errors.Is(err, trust.ErrWrongKey):
		if by := trust.SignerOf(data); by != "" && !slices.ContainsFunc(keys,
			func(k *trust.PublicKey) bool { return k.Fingerprint() == by }) {
			return nil, fmt.Errorf("%s is signed by another key (%s, as it says)", file, by)
		}
		return nil, fmt.Errorf("%s is signed by none of the trusted keys", file)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &signed{Key: key.Fingerprint(), Path: file}, nil
}

// checkKeyless returns the signer of a signature of the bytes with a certificate.
func checkKeyless(signers []namedSigner, file string, data, artifact []byte) (*signed, error) {
	var tried []error
	for _, n := range signers {
		claim, err := n.root.VerifyBundle(n.id, data, artifact)
		if err == nil && claim.Predicate == "" {
			return &signed{Identity: n.String(), Path: file}, nil
		}
		tried = append(tried, err)
	}
	return nil, fmt.Errorf("%s: %w", file, errors.Join(tried...))
}

// bundleName returns the name of a bundle for messages.
func bundleName(path string) string {
	if path == standardStream {
		return "the bundle"
	}
	return path
}
