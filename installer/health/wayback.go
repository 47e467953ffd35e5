package health

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
)

// WayBack returns the release that a node's copies lead to and their size, or nil if the node has none.
func WayBack(ctx context.Context, t *task.Host) (*report.WayBack, error) {
	kept, there, err := marks.FindCopies(ctx, t)
	if err != nil || !there {
		return nil, err
	}
	bytes, err := marks.CopiesSize(ctx, t)
	if err != nil {
		return nil, err
	}
	return &report.WayBack{Host: t.Name, Release: kept.Release(), Bytes: bytes}, nil
}
