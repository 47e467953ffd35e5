// Package embedded is a registry that can be written to: the CNCF distribution, inside the process, with its content in a
// directory of the file system. Other drivers (S3 and the like) are not linked: the registry program has them.
//
// Content lies as distribution's own filesystem driver puts it, under DIR/docker/registry/v2, so that the registry program can
// serve the same directory. Beside it are kkbundle.lock, held by who may change content, and kkbundle.secret, which signs the
// state of uploads, so that they continue after a restart.
//
// Image indexes are taken although some of their platforms are missing: bundles carry the platforms that were chosen, and
// an index with another content would have another digest.
package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/sirupsen/logrus"

	"github.com/kkbundle/kkbundle/registry/htpasswd"
	"github.com/kkbundle/kkbundle/registry/httpd"

	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // registers itself by name
)

const (
	secretFile = "kkbundle.secret"
	maxSecret  = 1 << 10 // bytes that are read of it
	pageSize   = 1000    // entries of a catalog or list of tags, at most

	// What uploads leave behind that nobody finished is removed after a week, looked for once a day: distribution's own
	// defaults.
	uploadAge, uploadInterval = "168h", "24h"
)

// Options say where content is kept and who may do what.
type Options struct {
	Dir      string // made if it is not there
	Users    string // path of an htpasswd file with bcrypt hashes; everything but /healthz needs a login then. "" lets all in
	Delete   bool   // manifests, tags and blobs may be deleted
	ReadOnly bool   // nothing may be written; Collect may run beside it
	Logger   *slog.Logger
}

// A Registry answers requests. All its methods may be called concurrently.
type Registry struct {
	app     *handlers.App
	users   *htpasswd.Users
	log     *slog.Logger
	dir     string
	lock    *lock
	metrics *metrics
}

// Open takes up the directory. The error is a *LockedError if another process may write there. Distribution logs to logrus'
// standard logger: Open turns that off and has what matters go to the Logger, so the last Open of a process has it.
func Open(ctx context.Context, o Options) (*Registry, error) {
	r := &Registry{users: htpasswd.New(o.Users), log: o.Logger, dir: o.Dir, metrics: newMetrics()}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if err := r.users.Load(); err != nil {
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
	secret := rand.Text() // nothing is uploaded to a read-only registry, whose directory may not be writable
	if !o.ReadOnly {
		if r.lock, err = acquire(o.Dir); err != nil {
			return err
		}
		if secret, err = keepSecret(o.Dir); err != nil {
			return err
		}
	}
	forward(r.log)
	defer func() { // distribution panics where its configuration is wrong or storage cannot be used
		if p := recover(); p != nil {
			err = fmt.Errorf("distribution: %v", p)
		}
	}()
	r.app = handlers.NewApp(ctx, settings(o, secret))
	return nil
}

// settings is https://distribution.github.io/distribution/about/configuration/ in Go.
func settings(o Options, secret string) *configuration.Configuration {
	c := &configuration.Configuration{Storage: configuration.Storage{
		"filesystem": {"rootdirectory": o.Dir},
		"cache":      {"blobdescriptor": "inmemory"},
		"delete":     {"enabled": o.Delete},
		"maintenance": {
			"uploadpurging": map[any]any{"enabled": !o.ReadOnly, "age": uploadAge, "interval": uploadInterval, "dryrun": false},
			"readonly":      map[any]any{"enabled": o.ReadOnly},
		},
	}}
	c.Catalog.MaxEntries, c.Tags.MaxTags = pageSize, pageSize
	c.HTTP.Secret = secret
	c.Validation.Manifests.Indexes.Platforms = "none"
	return c
}

// keepSecret returns the secret of a directory, and makes it where there is none.
func keepSecret(dir string) (string, error) {
	path := filepath.Join(dir, secretFile)
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxSecret))
		if s := strings.TrimSpace(string(data)); err != nil || s != "" {
			return s, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	secret := rand.Text()
	if err := os.WriteFile(path+".new", []byte(secret+"\n"), 0o600); err != nil {
		return "", err
	}
	return secret, os.Rename(path+".new", path)
}

// Reload reads the file of users again. On an error they stay as they are.
func (r *Registry) Reload() error { return r.users.Load() }

// Close ends the registry's work and gives up the directory. Requests must have ended.
func (r *Registry) Close() error {
	var errs []error
	if r.app != nil {
		errs = append(errs, r.app.Shutdown())
	}
	if r.lock != nil {
		errs = append(errs, r.lock.release())
	}
	return errors.Join(errs...)
}

// forward silences logrus' standard logger, which distribution writes to and offers no way around, and passes on what went
// wrong with storage. What clients did wrong is of interest to who looks for it only; requests are logged by ServeHTTP.
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

// Fire implements logrus.Hook. Of an entry's fields only those are taken that cannot hold a credential: addresses of uploads have
// a signed state in their query.
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

// stallTimeout is for each piece of a body that is read or written: slower clients are let go.
const stallTimeout = time.Minute

func limits() httpd.Limits {
	return httpd.Limits{Header: 10 * time.Second, Idle: 2 * time.Minute, Grace: 20 * time.Second, MaxHeader: 64 << 10}
}
