package embedded_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/registry/embedded"
)

// TestManyPullsNeedLittleMemory has 100 clients stop reading in the middle of a range of a blob, and measures the
// memory that this takes.
func TestManyPullsNeedLittleMemory(t *testing.T) {
	const clients, size, limit = 100, 16 << 20, 32 << 20
	host, _ := start(t, embedded.Options{Dir: t.TempDir()})
	content := []byte(strings.Repeat("0123456789abcdef", size/16))
	d := digest.FromBytes(content)
	putBlob(t, "http://"+host+"/v2/app", content, d)
	before := heap()
	for range clients {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		const status = "HTTP/1.1 206 Partial Content\r\n"
		answer := make([]byte, len(status))
		if _, err = fmt.Fprintf(c, "GET /v2/app/blobs/%s HTTP/1.1\r\nHost: x\r\nRange: bytes=4-\r\n\r\n",
			d); err == nil {
			_, err = io.ReadFull(c, answer)
		}
		if err != nil || string(answer) != status {
			t.Fatalf("%q, %v", answer, err)
		}
	}
	if more := int64(heap()) - int64(before); more > limit {
		t.Errorf("%d clients take %d MiB, at most %d are allowed", clients, more>>20, limit>>20)
	}
	got := site{host}.ask(t, "GET /v2/app/blobs/"+string(d), "", "Range: bytes=17-18").
		has(t, http.StatusPartialContent, "", fmt.Sprintf("Content-Range: bytes 17-18/%d", size),
			"Content-Type: application/octet-stream",
			"Docker-Content-Digest: "+string(d), `Etag: "`+string(d)+`"`,
			"Docker-Distribution-Api-Version: registry/2.0", "Cache-Control: max-age=31536000")
	if string(got.body) != "12" {
		t.Errorf("the range is %q", got.body)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
