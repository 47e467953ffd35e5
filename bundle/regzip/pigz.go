package regzip

import "io"

const pigzPart = 128 << 10

// A pigzWriter compresses like pigz with more than one thread: parts of 128 KiB, each compressed by zlib with the
// window before it as dictionary. Each part but the last ends at a whole byte.
type pigzWriter struct {
	*deflater
	part []byte // not yet compressed
	dict []byte // the window before part
}

func newPigzWriter(w io.Writer, level int) *pigzWriter {
	p := &pigzWriter{deflater: newDeflater(w, variantZlib, level), part: make([]byte, 0, pigzPart)}
	p.final = true // a part is all that the deflater sees
	return p
}

// Write compresses whole parts that content follows.
func (p *pigzWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if len(p.part) == pigzPart {
			p.compress()
			if len(p.blocks.tokens) > 0 {
				p.flush(false)
			}
			p.blocks.wholeByte()
		}
		if p.blocks.err != nil {
			return 0, p.blocks.err
		}
		take := min(len(b), pigzPart-len(p.part))
		p.part, b = append(p.part, b[:take]...), b[take:]
	}
	return n, nil
}

// compress makes the tokens of the part.
func (p *pigzWriter) compress() {
	p.restart(p.dict)
	p.in = append(p.in[:0], p.part...)
	p.run()
	p.dict = append(p.dict[:0], p.part[max(0, len(p.part)-windowSize):]...)
	p.part = p.part[:0]
}

// Close compresses the last part.
func (p *pigzWriter) Close() error {
	p.compress()
	p.flush(true)
	p.blocks.end()
	return p.blocks.err
}
