package git

// Diff and Patch are for tests.
func Diff(base, target []byte) []byte { return diff(base, target) }

// Patch applies a delta.
func Patch(base, delta []byte) ([]byte, error) { return patch(base, delta, maxDelta) }
