// Package embedded is a writable registry: the CNCF distribution, inside the process, with its content in a directory.
// Other drivers (S3 and the like) are not linked: the registry program has them.
//
// The content has the layout of distribution's own filesystem driver, under DIR/docker/registry/v2, so that the
// registry program can serve the same directory. Beside it are kkbundle.lock, held by the process that may change
// content, and kkbundle.secret, which signs the state of uploads, so that they continue after a restart.
//
// Image indexes are accepted without some of their platforms: bundles carry the selected platforms, and a changed index
// would have another digest.
package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/sirupsen/logrus"

	"github.com/kkbundle/kkbundle/registry/dirlock"
	"github.com/kkbundle/kkbundle/registry/htpasswd"
	"github.com/kkbundle/kkbundle/registry/httpd"
)

const (
	secretFile = "kkbundle.secret"
	maxSecret  = 1 << 10 // its maximal size in bytes
	pageSize   = 1000    // entries of a catalog or list of tags, at most

	// Remains of unfinished uploads are removed after a week, checked once a day: distribution's own defaults.
	uploadAge, uploadInterval = "168h", "24h"
)

// Options configure storage and permissions.
type Options struct {
	Dir string // created if missing
	// path of an htpasswd file with bcrypt hashes; then everything but /healthz requires a login. "" requires none
	Users string
	// path of an htpasswd file: its users may only pull, also those that Users has. "" if there are none; else Users
	// is required
	Pullers  string
	Delete   bool // allow deleting manifests, tags and blobs
	ReadOnly bool // allow no writes; Collect may run in parallel
	Logger   *slog.Logger
}

// A Registry answers requests. All its methods may be called concurrently.
type Registry struct {
	app      *handlers.App
	storage  distribution.Namespace // the same content, for what app does not offer
	links    links
	subjects *subjects
	readOnly bool
	users    *htpasswd.Users
	pullers  *htpasswd.Users
	log      *slog.Logger
	dir      string
	lock     *dirlock.Lock
	metrics  *metrics
}

// Open opens the directory. The error is a *dirlock.LockedError if another process may write there. Distribution logs
// to logrus' standard logger: Open silences that and passes important messages to the Logger of the process's last
// Open.
func Open(ctx context.Context, o Options) (*Registry, error) {
	r := &Registry{
		users: htpasswd.New(o.Users), pullers: htpasswd.New(o.Pullers), log: o.Logger, dir: o.Dir,
		metrics: newMetrics(),
	}
	r.log = cmp.Or(r.log, slog.New(slog.DiscardHandler))
	if o.Pullers != "" && o.Users == "" {
		return nil, errors.New("users who may only pull require other users: without them, everybody may push")
	}
	if err := r.Reload(); err != nil {
		return nil, err
	}
	if err := r.open(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("registry directory %s: %w", o.Dir, err), r.Close())
	}
	return r, nil
}

func (r *Registry) open(ctx context.Context, o Options) (err error) {
	const private = 0o750
	if err := os.MkdirAll(o.Dir, private); err != nil {
		return err
	}
	secret := rand.Text() // a read-only registry has no uploads, and its directory may not be writable
	if !o.ReadOnly {
		if r.lock, err = dirlock.Acquire(o.Dir); err != nil {
			return err
		}
		if secret, err = keepSecret(o.Dir); err != nil {
			return err
		}
	}
	forward(r.log)
	defer func() { // distribution panics on a wrong configuration or unusable storage
		if p := recover(); p != nil {
			err = fmt.Errorf("distribution: %v", p)
		}
	}()
	r.app, r.readOnly = handlers.NewApp(ctx, settings(o, secret)), o.ReadOnly
	r.links = links{filesystem.New(filesystem.DriverParameters{RootDirectory: o.Dir, MaxThreads: threads})}
	if r.storage, err = storage.NewRegistry(ctx, r.links.content, storage.EnableDelete); err != nil {
		return err
	}
	r.subjects = newSubjects(r.storage, r.links)
	return nil
}

// settings returns the configuration (https://distribution.github.io/distribution/about/configuration/).
func settings(o Options, secret string) *configuration.Configuration {
	c := &configuration.Configuration{Storage: configuration.Storage{
		"filesystem": {"rootdirectory": o.Dir},
		"cache":      {"blobdescriptor": "inmemory"},
		"delete":     {"enabled": o.Delete},
		"maintenance": {
			"uploadpurging": map[any]any{
				"enabled": !o.ReadOnly, "age": uploadAge, "interval": uploadInterval,
				"dryrun": false,
			},
			"readonly": map[any]any{"enabled": o.ReadOnly},
		},
	}}
	c.Catalog.MaxEntries, c.Tags.MaxTags = pageSize, pageSize
	c.HTTP.Secret = secret
	c.Validation.Manifests.Indexes.Platforms = "none"
	// of layers that are not distributed; none is ever fetched
	c.Validation.Manifests.URLs.Allow = []string{"^https?://"}
	return c
}

// keepSecret returns the secret of a directory, and creates it if missing. No link leads out of the directory.
func keepSecret(dir string) (secret string, err error) {
	within, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, within.Close()) }()
	f, err := within.Open(secretFile)
	if err == nil {
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxSecret))
		if s := strings.TrimSpace(string(data)); err != nil || s != "" {
			return s, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	secret = rand.Text()
	if err := within.WriteFile(secretFile+".new", []byte(secret+"\n"), 0o600); err != nil {
		return "", err
	}
	return secret, within.Rename(secretFile+".new", secretFile)
}

// Reload reads the users files again. On an error of a file its users stay unchanged.
func (r *Registry) Reload() error { return errors.Join(r.pullers.Load(), r.users.Load()) }

// Close ends the registry and releases the directory. Requests must have ended.
func (r *Registry) Close() error {
	var errs []error
	if r.app != nil {
		errs = append(errs, r.app.Shutdown())
	}
	if r.lock != nil {
		errs = append(errs, r.lock.Release())
	}
	return errors.Join(errs...)
}

// forward silences logrus' standard logger, which distribution always uses, and passes on storage errors. Clients'
// errors are logged at debug level; ServeHTTP logs requests.
func forward(log *slog.Logger) {
	logger := logrus.StandardLogger()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.WarnLevel)
	hooks := make(logrus.LevelHooks)
	hooks.Add(hook{log})
	logger.ReplaceHooks(hooks)
}

type hook struct{ log *slog.Logger }

// Levels implements logrus.Hook.
func (h hook) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel}
}

// Fire implements logrus.Hook. It passes on only fields that cannot contain a credential: addresses of uploads have a
// signed state in their query.
func (h hook) Fire(e *logrus.Entry) error {
	level := slog.LevelDebug
	if status, ok := e.Data["http.response.status"].(int); ok && status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	attributes := []slog.Attr{slog.String("message", e.Message)}
	for _, key := range []string{"err.detail", "vars.name"} {
		if v, ok := e.Data[key]; ok {
			attributes = append(attributes, slog.String(key, fmt.Sprint(v)))
		}
	}
	h.log.LogAttrs(e.Context, level, "registry", attributes...)
	return nil
}

// stallTimeout is for each piece of a body that is read or written; slower clients are disconnected.
const stallTimeout = time.Minute

func limits() httpd.Limits {
	return httpd.Limits{Idle: 2 * time.Minute, Grace: 20 * time.Second, MaxHeader: 64 << 10}
}
