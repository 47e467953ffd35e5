package software

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"runtime"
)

// S3ServerVersion is the version of the server that stands for the object storage of a site.
const S3ServerVersion = "v1.8.0"

// s3Server is versitygw, a server of the S3 API over a directory: it checks signatures and checksums.
func s3Server() recipe {
	return recipe{
		Name: "versitygw", Module: "github.com/versity/versitygw@" + S3ServerVersion, Mod: "readonly",
		Packages: map[string]string{"versitygw": "./cmd/versitygw"},
	}
}

// S3Server compiles the server of the S3 API, unless that has been done, and returns the path of the program.
func S3Server(ctx context.Context, log io.Writer) (program string, err error) {
	b := &builder{log: log, bin: map[string]string{}}
	if b.dir, err = DefaultDir(); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, b.dir, b.say)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	dir, err := b.compile(ctx, s3Server(), runtime.GOARCH)
	return filepath.Join(dir, "versitygw"), err
}
