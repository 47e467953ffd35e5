package manifest

// Trust is a policy about signatures of bundles, for a machine or a user.
type Trust struct {
	APIVersion string `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string `yaml:"kind" kk:"required" doc:"Trust"`
	// Require refuses bundles without a valid signature.
	Require bool `yaml:"require,omitempty" doc:"Refuse a bundle without a valid signature. In the machine's file, only the machine's keys count then."`
	// Keys are paths of PEM files with public keys, relative to this file.
	Keys []string `yaml:"keys,omitempty" local:"machine" doc:"PEM files with public keys, one of which must have signed a bundle; relative to this file."`
	// Root is the path of a Sigstore trusted root, relative to this file; Identities are signers whom it vouches for.
	Root       string          `yaml:"root,omitempty" local:"machine" doc:"Sigstore trusted root (trusted_root.json) for identities; relative to this file."`
	Identities []TrustIdentity `yaml:"identities,omitempty" doc:"Signers without a key; one of them, or of the keys, must have signed."`
}

// TrustIdentity is a signer without a key, as a certificate names it, exactly.
type TrustIdentity struct {
	Identity string `yaml:"identity" kk:"required" doc:"Subject of the certificate: an email address or URI, exactly."`
	Issuer   string `yaml:"issuer" kk:"required" doc:"Issuer of the signer's token."`
}

// ParseTrust reads a Trust. The error is Problems.
func ParseTrust(file string, data []byte) (*Trust, error) {
	t := &Trust{}
	return decode(file, data, KindTrust, t, func(c *checker) {
		if !t.Require && len(t.Keys)+len(t.Identities) == 0 {
			c.Add("", "has no effect; write keys, require: true, or both")
		}
		if (t.Root == "") != (len(t.Identities) == 0) {
			c.Add("", "root and identities belong together; write both")
		}
	})
}
