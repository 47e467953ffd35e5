package format

import (
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A Level is a trade-off between compression time and size. The zero value is LevelDefault.
type Level int

// The levels. Incompressible content is stored at every level.
const (
	LevelDefault Level = iota // as zstd -3
	LevelFast                 // as zstd -1
	LevelBetter               // as zstd -7
	LevelBest                 // as zstd -11, pieces of 8 MiB
)

// Levels returns all levels in the order of the constants.
func Levels() []Level { return []Level{LevelDefault, LevelFast, LevelBetter, LevelBest} }

// levelNames is in the order of the constants.
func levelNames() []string { return []string{"default", "fast", "better", "best"} }

// String returns the level's name, as ParseLevel reads it.
func (l Level) String() string {
	if names := levelNames(); l >= 0 && int(l) < len(names) {
		return names[l]
	}
	return fmt.Sprintf("level(%d)", int(l))
}

// ParseLevel reads "fast", "default", "better" or "best".
func ParseLevel(name string) (Level, error) {
	for i, n := range levelNames() {
		if n == name {
			return Level(i), nil
		}
	}
	return 0, fmt.Errorf("compression level %q: want fast, default, better or best", name)
}

// Jobs returns the number of compressors used at once. Each has tables (LevelBest: 32 MiB), a window, a piece and a
// frame. Together they must stay far below 400 MiB on a machine with any number of processors. Eight are faster than
// networks and disks.
func (l Level) Jobs() int {
	most := 8
	if l == LevelBest {
		most = 3
	}
	return min(runtime.GOMAXPROCS(0), most)
}

// Cutting and compressing.
const (
	// zstdVersion is the version of klauspost/compress in go.mod: another version may write other bytes, so it is part
	// of the encoder's name.
	zstdVersion = "v1.20.3"

	SmallBlob    = 64 << 10  // largest blob in a glue frame
	MaxGlue      = 128 << 10 // most bytes of content in a glue frame
	MinFrameSize = 128 << 10 // the smallest FrameSize of a bundle
	MaxFrameSize = 8 << 20   // the largest FrameSize of a bundle

	// A frame is stored if the trial saves less than 3 %: decoding it would cost more than the bytes saved.
	storedPercent = 97

	// Content of at least minSampled bytes is stored without a trial if samples at even distances save less than 1 %.
	// Most content is gzip layers, and the trial would take as long as hashing them.
	minSampled    = 1 << 20
	samples       = 8
	sampleSize    = 16 << 10
	samplePercent = 99
)

// An Encoder turns content into frames. Its name covers everything that the bytes depend on. Safe for concurrent use.
type Encoder struct {
	ID        string        // its name, as in kkbundle.json
	FrameSize int           // bytes of a blob in a frame
	sample    *zstd.Encoder // cheapest: decides whether the trial is worth it
	trial     *zstd.Encoder // cheap: decides whether to store
	final     *zstd.Encoder // nil: use the trial's result
	samples   sync.Pool     // *sampleBuffers
}

// settings are the parameters of a level. The encoder's name contains all of them.
type settings struct {
	trial, final zstd.EncoderLevel
	frameSize    int
}

func (l Level) settings() (settings, error) {
	s := settings{zstd.SpeedDefault, zstd.SpeedDefault, 4 << 20}
	switch l {
	case LevelFast:
		s.trial, s.final = zstd.SpeedFastest, zstd.SpeedFastest
	case LevelDefault:
	case LevelBetter:
		s.final = zstd.SpeedBetterCompression
	case LevelBest:
		s.final, s.frameSize = zstd.SpeedBestCompression, 8<<20
	default:
		return s, fmt.Errorf("unknown compression %s", l)
	}
	return s, nil
}

// Encoder returns the name and the frame size of the level's encoder.
func (l Level) Encoder() (id string, frameSize int, err error) {
	s, err := l.settings()
	return s.id(), s.frameSize, err
}

// LevelOf returns the level of a bundle with that encoder and frame size, or the nearest one.
func LevelOf(encoder string, frameSize int) Level {
	for _, l := range Levels() {
		s, err := l.settings()
		if err == nil && s.frameSize == frameSize && strings.Contains(encoder, s.levelWord()+" ") {
			return l
		}
	}
	if s, err := LevelBest.settings(); err == nil && s.frameSize == frameSize {
		return LevelBest
	}
	return LevelDefault
}

// levelWord returns the level as written in an encoder's name.
func (s settings) levelWord() string { return "level=" + s.final.String() }

func (s settings) id() string {
	return strings.Join([]string{
		"klauspost/compress/zstd", zstdVersion, s.levelWord(), fmt.Sprintf("window=%d", s.frameSize),
		"lowmem=true", "single=true", "crc=true", "literals=true", "trial=" + s.trial.String(),
		fmt.Sprintf("stored=%d%%", storedPercent),
		fmt.Sprintf("sample=%dx%d/%d%%", samples, sampleSize, samplePercent),
		fmt.Sprintf("frame=%d", s.frameSize),
	}, " ")
}

// NewEncoder returns the encoder of a level. At most jobs frames are compressed at the same time.
func NewEncoder(level Level, jobs int) (*Encoder, error) {
	set, err := level.settings()
	if err != nil {
		return nil, err
	}
	trial, final, frameSize := set.trial, set.final, set.frameSize
	e := &Encoder{ID: set.id(), FrameSize: frameSize}
	if e.sample, err = newZstd(zstd.SpeedFastest, samples*sampleSize, jobs); err != nil {
		return nil, err
	}
	if e.trial, err = newZstd(trial, frameSize, jobs); err != nil {
		return nil, err
	}
	if final != trial {
		if e.final, err = newZstd(final, frameSize, jobs); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func newZstd(level zstd.EncoderLevel, window, jobs int) (*zstd.Encoder, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithWindowSize(window),
		zstd.WithLowerEncoderMem(true),
		zstd.WithSingleSegment(true), zstd.WithEncoderCRC(true), zstd.WithEncoderConcurrency(jobs),
		// the lower levels leave it out, and hex, base64 and weights of models have no repetitions
		zstd.WithAllLitEntropyCompression(true))
	if err != nil {
		return nil, fmt.Errorf("zstd encoder: %w", err)
	}
	return e, nil
}

// promising reports whether content may be worth compressing, judged by samples.
func (e *Encoder) promising(content []byte) bool {
	if len(content) < minSampled {
		return true
	}
	b, ok := e.samples.Get().(*sampleBuffers)
	if !ok {
		b = &sampleBuffers{}
	}
	defer e.samples.Put(b)
	b.content = b.content[:0]
	for i := range samples {
		at := i * (len(content) - sampleSize) / (samples - 1)
		b.content = append(b.content, content[at:at+sampleSize]...)
	}
	b.frame = e.sample.EncodeAll(b.content, b.frame[:0])
	return len(b.frame)*100 <= len(b.content)*samplePercent
}

// sampleBuffers hold the samples of one piece and their compressed form.
type sampleBuffers struct{ content, frame []byte }

// AppendFrame appends the frame of content. The same content always gives the same frame.
func (e *Encoder) AppendFrame(dst, content []byte) []byte {
	if !e.promising(content) {
		return AppendStored(dst, content)
	}
	start := len(dst)
	dst = e.trial.EncodeAll(content, dst)
	if int64(len(dst)-start)*100 > int64(len(content))*storedPercent {
		return AppendStored(dst[:start], content)
	}
	if e.final != nil {
		dst = e.final.EncodeAll(content, dst[:start])
	}
	return dst
}
