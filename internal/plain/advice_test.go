package plain_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/kkbundle/kkbundle/internal/plain"
)

func TestAdvise(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("read: %w", plain.Advise(fmt.Errorf("a: %w", fs.ErrNotExist), "make it"))
	var hinted interface{ Hint() string }
	if err.Error() != "read: a: file does not exist" || !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &hinted) ||
		hinted.Hint() != "make it" {
		t.Errorf("got %v", err)
	}
}
