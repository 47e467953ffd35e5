//go:build linux

package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/s3test"
)

// smallPart is the least size that S3 allows for a part that is not the last.
const smallPart = 5 << 20

func realStorage(address string) Storage {
	return Storage{
		Endpoint: "http://" + address, Bucket: "bucket", Prefix: "copies", Region: "us-east-1",
		AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
	}
}

// A journal has the requests that a server got, as method and query.
type journal struct {
	lock sync.Mutex
	list []string
}

// add adds a request and returns how often it has come.
func (j *journal) add(r *http.Request) int {
	j.lock.Lock()
	defer j.lock.Unlock()
	q := r.URL.Query()
	text := r.Method
	for _, name := range []string{"uploads", "partNumber", "uploadId"} {
		if q.Has(name) && name == "partNumber" {
			return j.count(text + " part " + q.Get(name))
		} else if q.Has(name) {
			return j.count(text + " " + name)
		}
	}
	return j.count(text)
}

func (j *journal) count(text string) int {
	j.list = append(j.list, text)
	n := 0
	for _, one := range j.list {
		if one == text {
			n++
		}
	}
	return n
}

func (j *journal) last() string { return j.list[len(j.list)-1] }

// A large copy is sent in parts. A connection that breaks in one, and a storage that asks for less, cost only that
// part.
func TestS3PartsAreRepeated(t *testing.T) {
	t.Parallel()
	address, objects := s3test.Start(t, "bucket")
	var j journal
	front := s3test.Before(t, address, func(w http.ResponseWriter, r *http.Request) bool {
		n := j.add(r)
		switch part := r.URL.Query().Get("partNumber"); {
		case part == "2" && n == 1:
			_, _ = io.CopyN(io.Discard, r.Body, smallPart/2)
			panic(http.ErrAbortHandler) // the connection breaks
		case part == "3" && n <= 2:
			w.Header().Set("Retry-After", "7")
			s3test.Refuse(w, http.StatusServiceUnavailable, "SlowDown")
			return true
		case r.URL.Query().Has("uploads") && n == 1:
			s3test.Refuse(w, http.StatusTooManyRequests, "TooManyRequests")
			return true
		}
		return false
	}, nil)
	c, pauses := client(t, realStorage(front))
	c.part = smallPart
	file := copies(t, 3*smallPart+1000)[0]
	if _, err := c.putCopies(t.Context(), file, place); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"POST uploads", "POST uploads", "PUT part 1", "PUT part 2", "PUT part 2", "PUT part 3", "PUT part 3",
		"PUT part 3", "PUT part 4", "POST uploadId",
	}
	if !slices.Equal(j.list, want) {
		t.Errorf("requests %q, want %q", j.list, want)
	}
	if len(*pauses) != 4 || (*pauses)[2] != 7*time.Second || (*pauses)[0] > firstPause {
		t.Errorf("pauses %v", *pauses)
	}
	object := path.Join("copies", place, filepath.Base(file))
	equal(t, file, filepath.Join(objects, object))
	var got bytes.Buffer
	if err := c.Download(t.Context(), object, &got); err != nil || got.Len() != 3*smallPart+1000 {
		t.Errorf("downloaded %d bytes: %v", got.Len(), err)
	}
}

func equal(t *testing.T, file, other string) {
	t.Helper()
	a, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(other); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the storage has %d bytes, %d were sent (%v)", len(b), len(a), err)
	}
}

// A storage that knows another ETag for a part than it has answered takes the copy in a second upload.
func TestS3WrongETag(t *testing.T) {
	t.Parallel()
	address, objects := s3test.Start(t, "bucket")
	var j journal
	wrong := true
	front := s3test.Before(t, address, func(_ http.ResponseWriter, r *http.Request) bool { j.add(r); return false },
		func(r *http.Response) error {
			if r.Request.URL.Query().Get("partNumber") == "1" && wrong {
				r.Header.Set("ETag", `"d41d8cd98f00b204e9800998ecf8427e"`)
				wrong = false
			}
			return nil
		})
	c, _ := client(t, realStorage(front))
	c.part = smallPart
	file := copies(t, smallPart+1)[0]
	if _, err := c.putCopies(t.Context(), file, place); err != nil {
		t.Fatalf("%v\n%q", err, j.list)
	}
	if first := []string{
		"POST uploads", "PUT part 1", "PUT part 2", "POST uploadId", "DELETE uploadId",
		"POST uploads",
	}; !slices.Equal(j.list[:len(first)], first) {
		t.Errorf("requests %q", j.list)
	}
	equal(t, file, filepath.Join(objects, "copies", place, filepath.Base(file)))
}

// The parts of an upload that fails are removed, also if the run is ended.
func TestS3FailedUploadIsAborted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]bool{"denied": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, _ := s3test.Start(t, "bucket")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var j journal
			front := s3test.Before(t, address, func(w http.ResponseWriter, r *http.Request) bool {
				j.add(r)
				if r.URL.Query().Get("partNumber") != "2" {
					return false
				}
				if end {
					cancel()
				}
				s3test.Refuse(w, http.StatusForbidden, "AccessDenied")
				return true
			}, nil)
			c, _ := client(t, realStorage(front))
			c.part = smallPart
			if _, err := c.putCopies(ctx, copies(t, 2*smallPart)[0], place); err == nil ||
				!end && !strings.Contains(err.Error(), "part 2 of 2: the storage answers 403 Forbidden: AccessDenied") {
				t.Errorf("the part was denied: %v", err)
			}
			if j.last() != "DELETE uploadId" {
				t.Errorf("requests %q", j.list)
			}
			data, err := c.Page(t.Context(), map[string]string{"uploads": ""}, 1<<20)
			if err != nil || !strings.Contains(string(data), "ListMultipartUploadsResult") ||
				strings.Contains(string(data), "<Key>") {
				t.Errorf("unfinished uploads: %s, %v", data, err)
			}
		})
	}
}

// Attempts and pauses have an end, and errors say what to do, without the secret.
func TestS3ErrorsHaveRemedies(t *testing.T) {
	t.Parallel()
	address, _ := s3test.Start(t, "bucket")
	for name, one := range map[string]struct {
		set  func(c *Client)
		want []string
	}{
		"another secret": {
			func(c *Client) { c.SecretKey = "another-secret" },
			[]string{"SignatureDoesNotMatch", "backup.s3.secretKeyFile"},
		},
		"another user":   {func(c *Client) { c.AccessKey = "nobody" }, []string{"backup.s3.accessKey"}},
		"no bucket":      {func(c *Client) { c.Bucket = "absent" }, []string{"NoSuchBucket", "create the bucket"}},
		"another region": {func(c *Client) { c.Region = "eu-central-1" }, []string{"backup.s3.region"}},
		"a clock that is fast": {
			func(c *Client) { c.now = func() time.Time { return time.Now().Add(time.Hour) } },
			[]string{"RequestTimeTooSkewed", "the clock of this machine", "there (1h0m", "chronyc"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pauses := client(t, realStorage(address))
			one.set(c)
			// A storage that refuses a large copy may close the connection before it has read the copy, which is
			// tried again.
			_, err := c.putCopies(t.Context(), copies(t, 1<<10)[0], place)
			for _, want := range one.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("without %q: %v", want, err)
				}
			}
			if err != nil && (strings.Contains(err.Error(), c.SecretKey) || len(*pauses) > 0) {
				t.Errorf("shows the secret, or was tried again %d times: %v", len(*pauses), err)
			}
		})
	}
	after := "31"
	fails := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", after)
		s3test.Refuse(w, http.StatusBadGateway, "")
	}))
	defer fails.Close()
	c, pauses := client(t, realStorage(fails.Listener.Addr().String()))
	_, err := c.putCopies(t.Context(), copies(t, 1)[0], place)
	if err == nil || !strings.Contains(err.Error(), "10 attempts: the storage answers 502 Bad Gateway") ||
		!strings.Contains(err.Error(), "the next run of the timer sends it again") {
		t.Errorf("a storage that always fails: %v", err)
	}
	if len(*pauses) != attempts-1 || slices.Max(*pauses) != 31*time.Second {
		t.Errorf("pauses %v", *pauses)
	}
	after = "100000"
	c, pauses = client(t, realStorage(fails.Listener.Addr().String()))
	if _, err := c.putCopies(t.Context(), copies(t, 1)[0], place); err == nil ||
		!strings.Contains(err.Error(), "pause of 27h46m40s") || len(*pauses) > 0 {
		t.Errorf("a storage that asks for too long a pause: %v, pauses %v", err, *pauses)
	}
}

// A storage that says after a successful status that it could not join the parts is asked again.
func TestS3ErrorInSuccess(t *testing.T) {
	t.Parallel()
	address, objects := s3test.Start(t, "bucket")
	var j journal
	front := s3test.Before(t, address, func(w http.ResponseWriter, r *http.Request) bool {
		if n := j.add(r); j.last() != "POST uploadId" || n > 1 {
			return false
		}
		s3test.Refuse(w, http.StatusOK, "InternalError")
		return true
	}, nil)
	c, _ := client(t, realStorage(front))
	c.part = smallPart
	file := copies(t, smallPart+1)[0]
	if _, err := c.putCopies(t.Context(), file, place); err != nil {
		t.Fatal(err)
	}
	equal(t, file, filepath.Join(objects, "copies", place, filepath.Base(file)))
}

// Copies that were not sent are sent by a later run, the newest first and not too many; another storage gets all.
func TestS3LateCopies(t *testing.T) {
	t.Parallel()
	address, objects := s3test.Start(t, "bucket")
	files := copies(t, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	newest := files[len(files)-1]
	names := func(list []string) (names []string) {
		for _, file := range slices.Backward(list) {
			names = append(names, filepath.Base(file))
		}
		return names
	}
	denies := s3test.Before(t, address, func(w http.ResponseWriter, _ *http.Request) bool {
		s3test.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	}, nil)
	c, _ := client(t, realStorage(denies))
	if sent, err := c.putCopies(t.Context(), newest, place); err == nil || len(sent) != 0 {
		t.Fatalf("a storage that refuses got %v, %v", sent, err)
	}
	for _, want := range [][]string{
		names(files[3:]), append(names(files[11:]), names(files[:3])...),
		names(files[11:]),
	} {
		c, _ := client(t, realStorage(address))
		if sent, err := c.putCopies(t.Context(), newest, place); err != nil || !slices.Equal(sent, want) {
			t.Fatalf("sent %v, want %v: %v", sent, want, err)
		}
	}
	for _, file := range files {
		equal(t, file, filepath.Join(objects, "copies", place, filepath.Base(file)))
	}
	c, _ = client(t, realStorage(address))
	c.Prefix = "elsewhere"
	if sent, err := c.putCopies(t.Context(), newest, place); err != nil || len(sent) != maxLate+1 {
		t.Errorf("another place got %v, %v", sent, err)
	}
	if left, _ := filepath.Glob(filepath.Dir(newest) + "/" + sentRecord + "-*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A download continues after its connection broke. One of an object that has changed does not.
func TestS3DownloadContinues(t *testing.T) {
	t.Parallel()
	address, objects := s3test.Start(t, "bucket")
	const size = 3 << 20
	file := copies(t, size)[0]
	for changed, want := range map[bool]string{false: "", true: "PreconditionFailed"} {
		broken := false
		front := s3test.Before(t, address, func(http.ResponseWriter, *http.Request) bool { return false },
			func(r *http.Response) error {
				if r.Request.Method == http.MethodGet && !broken {
					broken = true
					r.Body = struct {
						io.Reader
						io.Closer
					}{io.MultiReader(io.LimitReader(r.Body, size/3), breaks{}), r.Body}
					if changed {
						c, _ := client(t, realStorage(address))
						_, err := c.putCopies(t.Context(), copies(t, size)[0], place)
						return err
					}
				}
				return nil
			})
		c, pauses := client(t, realStorage(front))
		if _, err := c.putCopies(t.Context(), file, place); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		err := c.Download(t.Context(), path.Join("copies", place, filepath.Base(file)), &got)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("changed %t: %v", changed, err)
		}
		if len(*pauses) != 1 {
			t.Errorf("changed %t: pauses %v", changed, *pauses)
		}
		if data, err := os.ReadFile(filepath.Join(objects, "copies", place, filepath.Base(file))); !changed &&
			(err != nil || !bytes.Equal(data, got.Bytes())) {
			t.Errorf("%d bytes arrived, other than the storage has", got.Len())
		}
	}
}

type breaks struct{}

func (breaks) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestS3LostRefusal has a storage that refuses a copy and closes the connection before its answer arrives.
func TestS3LostRefusal(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchBucket</Code></Error>")
	}))
	defer refuses.Close()
	s := Storage{
		Endpoint: refuses.URL, Bucket: "absent", Prefix: "copies", Region: "us-east-1", AccessKey: "a",
		SecretKey: "secret-of-the-site",
	}
	if _, _, err := sends(t, s, 1<<10); err == nil || !strings.Contains(err.Error(), "create the bucket") {
		t.Errorf("got %v", err)
	}
}
