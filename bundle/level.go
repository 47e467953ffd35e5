package bundle

import "github.com/kkbundle/kkbundle/bundle/format"

// A Level is a trade-off between compression time and size. The zero value is LevelDefault.
type Level = format.Level

// The levels. Incompressible content is stored at every level.
const (
	LevelDefault = format.LevelDefault // as zstd -3
	LevelFast    = format.LevelFast    // as zstd -1
	LevelBetter  = format.LevelBetter  // as zstd -7
	LevelBest    = format.LevelBest    // as zstd -11, pieces of 8 MiB
)

// ParseLevel reads "fast", "default", "better" or "best".
func ParseLevel(name string) (Level, error) { return format.ParseLevel(name) }
