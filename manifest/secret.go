package manifest

// Secret is text that is never printed, in any value that contains it. With == a Secret equals only its copies; Equal
// compares the texts.
type Secret struct{ text *string } // a pointer: fmt does not print the target of a pointer in a field

// NewSecret hides text. An empty text is the zero Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal returns the text, "" for the zero Secret.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsSet reports whether there is a text.
func (s Secret) IsSet() bool { return s.text != nil }

// UnmarshalText hides text.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = NewSecret(string(text))
	return nil
}

// Equal reports whether both have the same text.
func (s Secret) Equal(o Secret) bool { return s.Reveal() == o.Reveal() }

// IsZero keeps secrets out of YAML with omitempty.
func (Secret) IsZero() bool { return true }

// String returns a placeholder.
func (s Secret) String() string {
	if s.text == nil {
		return ""
	}
	return "(secret)"
}

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// MarshalText is String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
