package s3

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// usualPart is the size of a part. A larger file is sent in parts, so that a broken connection costs one part.
	usualPart = 64 << 20
	// maxParts is S3's limit. https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
	maxParts = 10_000
	// maxLate is the number of earlier copies that one run sends. The next copy waits for it.
	maxLate = 8
	// abortLimit bounds the removal of a failed upload's parts.
	abortLimit = time.Minute
	// nothingSHA256 is the SHA-256 of no bytes.
	nothingSHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	// sentRecord names the copies that a storage has, beside them.
	sentRecord = ".sent.json"
)

// sentCopies are the copies in a directory that a storage has. The login may put objects and cannot list them.
type sentCopies struct {
	To    string   `json:"to"` // the storage, the bucket and the place; another one has none of the copies
	Files []string `json:"files"`
}

// PutFile sends a copy to the storage that the file config describes, below its prefix and the given directory, and
// then the newest copies beside it that have not been sent. It returns the names of sent copies.
func PutFile(ctx context.Context, config, file, dir string) ([]string, error) {
	data, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	var s Storage
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	c, err := NewClient(s)
	if err != nil {
		return nil, err
	}
	return c.putCopies(ctx, file, dir)
}

func (c *Client) putCopies(ctx context.Context, file, dir string) (names []string, err error) {
	place := path.Join(c.Prefix, dir)
	to := strings.TrimSuffix(c.Endpoint, "/") + "/" + path.Join(c.Bucket, place)
	there, err := copiesBeside(file)
	if err != nil {
		return nil, err
	}
	record := filepath.Join(filepath.Dir(file), sentRecord)
	sent := readSent(record, to)
	sent.Files = slices.DeleteFunc(sent.Files, func(name string) bool { return !slices.Contains(there, name) })
	late := slices.DeleteFunc(there,
		func(name string) bool { return name == filepath.Base(file) || slices.Contains(sent.Files, name) })
	for _, name := range append([]string{filepath.Base(file)}, late[:min(len(late), maxLate)]...) {
		if err := c.putFile(ctx, filepath.Join(filepath.Dir(file), name), path.Join(place, name)); err != nil {
			return names, err
		}
		names = append(names, name)
		if !slices.Contains(sent.Files, name) {
			sent.Files = append(sent.Files, name)
		}
		if err := writeSent(record, sent); err != nil {
			return names, err
		}
	}
	return names, nil
}

// copiesBeside returns the copies in a file's directory, newest first. Their names order them by time.
func copiesBeside(file string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		isCopy := strings.HasPrefix(e.Name(), "etcd-") && (strings.HasSuffix(e.Name(), ".db") ||
			strings.HasSuffix(e.Name(), ".db.age"))
		if e.Type().IsRegular() && isCopy {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(b, a) })
	return names, nil
}

// readSent reads a record. Without one that fits, all copies count as not sent: sending one again does no harm.
func readSent(file, to string) sentCopies {
	var sent sentCopies
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &sent) != nil || sent.To != to {
		return sentCopies{To: to}
	}
	return sent
}

// writeSent replaces the record at once.
func writeSent(file string, sent sentCopies) error {
	data, err := json.Marshal(sent)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), sentRecord+"-*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// putFile sends a file as one object, which exists as a whole or not at all.
func (c *Client) putFile(ctx context.Context, file, object string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	inParts := info.Size() > c.part
	if !inParts {
		_, err = c.putPart(ctx, Request{Object: object}, io.NewSectionReader(f, 0, info.Size()))
		inParts = isUnanswered(ctx, err)
	}
	if inParts {
		if err = c.putParts(ctx, object, f, info.Size()); isLost(err) {
			err = c.putParts(ctx, object, f, info.Size())
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("send %s to %s, bucket %s, as %s: %w", file, c.Endpoint, c.Bucket, object, err)
	if hint, ok := errors.AsType[hinted](err); ok && hint.Hint() != "" {
		err = fmt.Errorf("%w; %s", err, hint.Hint())
	}
	return fmt.Errorf("%w; the copy stays here, and the next run of the timer sends it again", err)
}

// A hinted error has a remedy.
type hinted interface {
	error
	Hint() string
}

// isUnanswered reports whether the connection broke at each attempt. A storage that refuses a request before it has
// read the body closes the connection, and its answer can be lost with it. The first request of an upload in parts
// has no body, so its answer arrives.
func isUnanswered(ctx context.Context, err error) bool {
	_, answered := errors.AsType[*Error](err)
	return err != nil && !answered && canPass(err) && ctx.Err() == nil
}

// isLost reports whether the storage does not have the parts that it has taken: a second upload may succeed.
func isLost(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && slices.Contains([]string{"InvalidPart", "NoSuchUpload"}, refused.Code)
}

// A sentPart is a part that the storage has.
type sentPart struct {
	Number int    `xml:"PartNumber"`
	ETag   string `xml:"ETag"`
	SHA256 string `xml:"ChecksumSHA256"`
}

// putPart sends a part of a file, or all of it. The signature has the digest of the content, and the storage refuses
// other content.
func (c *Client) putPart(ctx context.Context, r Request, body *io.SectionReader) (sentPart, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, body); err != nil {
		return sentPart{}, err
	}
	digest := sum.Sum(nil)
	made := sentPart{SHA256: base64.StdEncoding.EncodeToString(digest)}
	r.Method, r.SHA256 = http.MethodPut, hex.EncodeToString(digest)
	r.Header = map[string]string{"x-amz-checksum-sha256": made.SHA256} // buckets that lock objects want it
	header, _, err := c.ask(ctx, r, body)
	if err != nil {
		return made, err
	}
	made.ETag = header.Get("ETag")
	return made, wrongChecksum(header.Get("x-amz-checksum-sha256"), made.SHA256)
}

// wrongChecksum returns an error if the storage names another checksum than the sent content has.
func wrongChecksum(answered, sent string) error {
	if answered != "" && answered != sent {
		return fmt.Errorf("the storage has other content than was sent: its checksum is %.60q, not %q; check the storage's disks", answered, sent)
	}
	return nil
}

// putParts sends a file in parts, one after the other. If it fails, the storage is asked to remove the parts.
func (c *Client) putParts(ctx context.Context, object string, f io.ReaderAt, size int64) (err error) {
	begin := Request{
		Method: http.MethodPost, Object: object, Query: map[string]string{"uploads": ""}, SHA256: nothingSHA256,
		Header: map[string]string{"x-amz-checksum-algorithm": "SHA256"},
	}
	_, data, err := c.ask(ctx, begin, nil)
	if err != nil {
		return err
	}
	var upload struct {
		ID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(data, &upload); err != nil || upload.ID == "" {
		return errors.New("the storage begins no upload in parts: its answer has no UploadId; check backup.s3.endpoint")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.abort(ctx, object, upload.ID))
		}
	}()
	var parts []sentPart
	partSize := max(c.part, size/maxParts+1)
	for at := int64(0); at < size; at += partSize {
		number := len(parts) + 1
		part := Request{Object: object, Query: map[string]string{
			"uploadId":   upload.ID,
			"partNumber": strconv.Itoa(number),
		}}
		made, err := c.putPart(ctx, part, io.NewSectionReader(f, at, min(partSize, size-at)))
		if err == nil && made.ETag == "" {
			err = errors.New("the storage's answer has no ETag")
		}
		if err != nil {
			return fmt.Errorf("part %d of %d: %w", number, (size+partSize-1)/partSize, err)
		}
		made.Number = number
		parts = append(parts, made)
	}
	return c.complete(ctx, object, upload.ID, parts)
}

// complete makes the parts an object.
func (c *Client) complete(ctx context.Context, object, upload string, parts []sentPart) error {
	body, err := xml.Marshal(struct {
		XMLName xml.Name   `xml:"CompleteMultipartUpload"`
		Parts   []sentPart `xml:"Part"`
	}{Parts: parts})
	if err != nil {
		return err
	}
	digest := sha256.Sum256(body)
	r := Request{
		Method: http.MethodPost, Object: object, Query: map[string]string{"uploadId": upload},
		SHA256: hex.EncodeToString(digest[:]),
	}
	_, data, err := c.ask(ctx, r, io.NewSectionReader(strings.NewReader(string(body)), 0, int64(len(body))))
	if err != nil {
		return err
	}
	var made struct {
		SHA256 string `xml:"ChecksumSHA256"`
	}
	if err := xml.Unmarshal(data, &made); err != nil {
		return fmt.Errorf("answer to the end of an upload in parts: %w", err)
	}
	// The checksum of an object in parts is that of the parts' checksums.
	sum := sha256.New()
	for _, p := range parts {
		one, err := base64.StdEncoding.DecodeString(p.SHA256)
		if err != nil {
			return err
		}
		sum.Write(one)
	}
	return wrongChecksum(made.SHA256, fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(sum.Sum(nil)), len(parts)))
}

// abort removes the parts of a failed upload, also after ctx has ended.
func (c *Client) abort(ctx context.Context, object, upload string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortLimit)
	defer cancel()
	r := Request{
		Method: http.MethodDelete, Object: object, Query: map[string]string{"uploadId": upload},
		SHA256: nothingSHA256,
	}
	_, _, err := c.ask(ctx, r, nil)
	if refused, ok := errors.AsType[*Error](err); err == nil || ok && refused.Code == "NoSuchUpload" {
		return nil
	}
	return fmt.Errorf("the parts that were sent stay in the bucket until a lifecycle rule removes them (AbortIncompleteMultipartUpload): %w", err)
}
