package fetch

import (
	"errors"
	"io"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/upstream"
)

// TestSpool: an error of the scratch directory is not one of a server, and the end of the file is none.
func TestSpool(t *testing.T) {
	t.Parallel()
	f, err := (&repositories{scratch: t.TempDir()}).spool()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); err != io.EOF { //nolint:errorlint // readers compare it so
		t.Errorf("at the end: %v", err)
	}
	_ = f.Close()
	_, writing := f.Write([]byte("x"))
	_, reading := f.ReadAt(make([]byte, 1), 0)
	for _, err := range []error{writing, reading} {
		if _, ok := errors.AsType[*upstream.StoreError](err); !ok {
			t.Errorf("a closed file: %v", err)
		}
	}
}
