package task

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// reasons collects the reasons why a task is not done.
type reasons struct {
	mu   sync.Mutex
	list []string
}

type reasonsKey struct{}

// WithReasons returns a context in which Because adds to the reasons.
func WithReasons(ctx context.Context) (context.Context, *reasons) {
	r := new(reasons)
	return context.WithValue(ctx, reasonsKey{}, r), r
}

// Because gives a reason why a task is not done, such as a missing file. A Done that returns false calls it; dry runs
// and events show the reason, so it must not contain secrets. Outside WithReasons it does nothing.
func Because(ctx context.Context, format string, args ...any) {
	r, ok := ctx.Value(reasonsKey{}).(*reasons)
	if !ok {
		return
	}
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.list, text) {
		r.list = append(r.list, text)
	}
}

// BecauseOfFile gives the reason for a file, or the stamp of a setting, that is missing or different.
func BecauseOfFile(ctx context.Context, file string, there bool) {
	stamp := strings.HasPrefix(file, StampDir+"/") || strings.HasPrefix(file, ProvisionDir+"/")
	switch {
	case stamp && there:
		Because(ctx, "its configuration has changed")
	case stamp:
		Because(ctx, "not applied yet")
	case there:
		Because(ctx, "%s is different", file)
	default:
		Because(ctx, "%s is missing", file)
	}
}

// maxReasons limits the listed reasons; the others are counted.
const maxReasons = 3

// String returns the first reasons.
func (r *reasons) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.Join(r.list[:min(len(r.list), maxReasons)], "; ")
	if more := len(r.list) - maxReasons; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// LineDifference names the lines that have lacks and those that want does not contain.
func LineDifference(have, want []byte) string {
	lacks, extra := linesOnlyIn(want, have), linesOnlyIn(have, want)
	var parts []string
	if len(lacks) > 0 {
		parts = append(parts, fmt.Sprintf("lacks %q", strings.Join(lacks, ", ")))
	}
	if len(extra) > 0 {
		parts = append(parts, fmt.Sprintf("has %q", strings.Join(extra, ", ")))
	}
	return strings.Join(parts, " and ")
}

// linesOnlyIn returns the lines of one text that the other does not contain, except kkbundle's marks.
func linesOnlyIn(one, other []byte) []string {
	known := strings.Split(string(other), "\n")
	return slices.DeleteFunc(strings.Split(string(one), "\n"), func(line string) bool {
		return slices.Contains(known, line) || strings.HasPrefix(line, BlockBegin) || strings.HasPrefix(line, BlockEnd)
	})
}
