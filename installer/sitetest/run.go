//go:build linux

package sitetest

import (
	"context"
	"sync"

	"github.com/kkbundle/kkbundle/installer/task"
)

// FlagTask returns a task that is done on a host once it was done.
func FlagTask(name string, where task.Where, done *sync.Map, do func(t *task.Host) error) task.Task {
	return task.Task{
		Name: name, Where: where,
		Done: func(_ context.Context, t *task.Host) (bool, error) {
			_, ok := done.Load(name + t.Name)
			return ok, nil
		},
		Do: func(_ context.Context, t *task.Host) error {
			if err := do(t); err != nil {
				return err
			}
			done.Store(name+t.Name, true)
			return nil
		},
	}
}
