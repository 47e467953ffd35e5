package bundletest

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// forgedFrame is the size of the pieces of a bundle that the builder makes, 4 MiB.
const forgedFrame = 4 << 20

// Forge changes one byte of a stored frame and makes every checksum agree again, like an attacker. content
// is the whole blob's and begins with a whole frame.
func Forge(t testing.TB, path string, content []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := content[:forgedFrame]
	at := bytes.Index(data, first[:1000])
	if at < 0 {
		t.Fatal("the content is not stored as it is")
	}
	bad := bytes.Clone(first)
	bad[500] ^= 1
	data[at+500] ^= 1
	end := at + forgedFrame + (forgedFrame/(128<<10)-1)*3
	was := bytes.Clone(data[end : end+4])
	binary.LittleEndian.PutUint32(data[end:], uint32(xxhash.Sum64(bad)))
	table := bytes.LastIndex(data, was)
	if table < end+4 {
		t.Fatal("the seek table has not the frame's checksum")
	}
	copy(data[table:], data[end:end+4])
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
