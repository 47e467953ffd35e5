package registry

import (
	"context"

	"github.com/kkbundle/kkbundle/bundle"
)

// PushStreamWithin is PushStream with another bound on what is held of one blob: large blobs make slow tests.
func PushStreamWithin(ctx context.Context, s *bundle.Stream, o PushOptions, memory int64) (PushSummary, error) {
	return pushFrom(ctx, newPipe(s, memory), o)
}
