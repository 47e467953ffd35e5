package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	blockSize  = 256 << 10
	maxBlocks  = 64  // kept in memory
	maxRequest = 128 // blocks of one request
)

// A Remote is a file on a web server, read by ranges. It fails when the file changes. It is safe for concurrent use.
type Remote struct {
	Size      int64
	validator http.Header // of the first answer
	fetch     func(from, to int64) ([]byte, error)

	mu     sync.Mutex
	blocks map[int64][]byte
	order  []int64 // of arrival
}

// Open reads the first bytes of a file. A server that does not send ranges is an error.
func (c *Client) Open(ctx context.Context, address string) (*Remote, error) {
	r := &Remote{blocks: map[int64][]byte{}}
	r.fetch = func(from, to int64) (data []byte, err error) {
		err = c.again(ctx, address, func() error {
			data, err = r.get(ctx, c, address, [2]int64{from, to})
			return err
		})
		return data, err
	}
	data, err := r.fetch(0, blockSize)
	if err != nil {
		return nil, err
	}
	r.keep(0, data)
	return r, nil
}

// contentRange is the grammar of the header of an answer with a range.
var contentRange = regexp.MustCompile(`^bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})$`)

// get reads a range, from and to. The first answer tells the size.
func (r *Remote) get(ctx context.Context, c *Client, address string, want [2]int64) (data []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, &localError{err}
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", want[0], want[1]-1))
	resp, err := c.do(request, http.StatusPartialContent, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	m := contentRange.FindStringSubmatch(resp.Header.Get("Content-Range"))
	if resp.StatusCode != http.StatusPartialContent || m == nil {
		return nil, unusable(address, "the server does not send ranges of files: pull the bundle, then name the file")
	}
	var at [3]int64
	for i := range at {
		at[i], err = strconv.ParseInt(m[i+1], 10, 64)
		if err != nil {
			return nil, unusable(address, "the server sent the range %q", plain.Line(m[0]))
		}
	}
	if r.validator == nil {
		r.Size, r.validator = at[2], resp.Header
	}
	for _, name := range []string{"ETag", "Last-Modified"} {
		if resp.Header.Get(name) != r.validator.Get(name) || at[2] != r.Size {
			return nil, unusable(address, "the file changed on the server while it was read: run the command again")
		}
	}
	end := min(want[1], r.Size)
	if at[0] != want[0] || at[1] != end-1 {
		return nil, unusable(address, "the server sent the range %q; bytes %d to %d were asked for", plain.Line(m[0]),
			want[0], end-1)
	}
	data = make([]byte, end-want[0])
	_, err = io.ReadFull(resp.Body, data)
	return data, err
}

// keep keeps blocks of the file in memory, the newest ones.
func (r *Remote) keep(first int64, data []byte) {
	for i := first; len(data) > 0; i++ {
		n := min(blockSize, len(data))
		if _, ok := r.blocks[i]; !ok {
			r.order = append(r.order, i)
		}
		r.blocks[i] = data[:n:n]
		data = data[n:]
	}
	for len(r.order) > maxBlocks {
		delete(r.blocks, r.order[0])
		r.order = r.order[1:]
	}
}

// ReadAt reads a range. Neighbouring bytes come with it, so that small reads are few requests.
func (r *Remote) ReadAt(p []byte, off int64) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n < len(p) {
		at := off + int64(n)
		if at >= r.Size {
			return n, io.EOF
		}
		i := at / blockSize
		block, ok := r.blocks[i]
		if !ok {
			last := min((off+int64(len(p))-1)/blockSize+1, i+maxRequest, (r.Size-1)/blockSize+1)
			data, err := r.fetch(i*blockSize, last*blockSize)
			if err != nil {
				return n, err
			}
			n += copy(p[n:], data[at-i*blockSize:])
			r.keep(i, data)
			continue
		}
		n += copy(p[n:], block[at-i*blockSize:])
	}
	return n, nil
}
