package manifest

// Trust is a policy about signatures of bundles, for a machine or a user.
type Trust struct {
	APIVersion string `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string `yaml:"kind" kk:"required" doc:"Trust"`
	// Require refuses bundles without a valid signature.
	Require bool `yaml:"require,omitempty" doc:"Refuse a bundle without a valid signature. In the machine's file, only the machine's keys count then."`
	// Keys are paths of PEM files with public keys, relative to this file.
	Keys []string `yaml:"keys,omitempty" local:"machine" doc:"PEM files with public keys, one of which must have signed a bundle; relative to this file."`
}

// ParseTrust reads a Trust. The error is Problems.
func ParseTrust(file string, data []byte) (*Trust, error) {
	t := &Trust{}
	return decode(file, data, KindTrust, t, func(c *checker) {
		if !t.Require && len(t.Keys) == 0 {
			c.add("", "has no effect; write keys, require: true, or both")
		}
	})
}
