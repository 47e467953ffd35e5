package task

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// reasons is why a task is not done, as its Done finds out.
type reasons struct {
	mu   sync.Mutex
	list []string
}

type reasonsKey struct{}

// WithReasons returns a context under which because is heard.
func WithReasons(ctx context.Context) (context.Context, *reasons) {
	r := new(reasons)
	return context.WithValue(ctx, reasonsKey{}, r), r
}

// Because says why a task is not done: what is missing, differs or does not run. A Done that returns false says it, for a
// dry run and for those who wonder why something was changed again. It must not have secrets in it. Elsewhere it does
// nothing.
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

// BecauseOf says what is wrong with a file, or what the stamp of a setting stands for.
func BecauseOfFile(ctx context.Context, file string, there bool) {
	stamp := strings.HasPrefix(file, StampDir+"/") || strings.HasPrefix(file, ProvisionDir+"/")
	switch {
	case stamp && there:
		Because(ctx, "what it is made from has changed")
	case stamp:
		Because(ctx, "it was not applied yet")
	case there:
		Because(ctx, "%s is different", file)
	default:
		Because(ctx, "%s is missing", file)
	}
}

// maxReasons is how many reasons are told; the others are counted.
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

// LineDifference says in short which lines one text lacks and another has.
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

// linesOnlyIn returns the lines of one text that another does not have, without our marks.
func linesOnlyIn(one, other []byte) []string {
	known := strings.Split(string(other), "\n")
	return slices.DeleteFunc(strings.Split(string(one), "\n"), func(line string) bool {
		return slices.Contains(known, line) || strings.HasPrefix(line, BlockBegin) || strings.HasPrefix(line, BlockEnd)
	})
}
