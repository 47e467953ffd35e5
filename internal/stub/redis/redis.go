// Package redis is a stub: see ../README.md.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"time"
)

var errUnsupported = errors.New(
	"redis is not supported: this program is built without a client for it; use another cache")

// NewUniversalClient panics, as distribution does for any configuration that it cannot work with.
func NewUniversalClient(*UniversalOptions) UniversalClient { panic(errUnsupported) }

// Nothing implements the interfaces below.
type (
	// A UniversalClient talks to a server.
	UniversalClient interface {
		Hashes
		PoolStats() *PoolStats
		SAdd(ctx context.Context, key string, members ...any) Cmd[int64]
		SIsMember(ctx context.Context, key string, member any) Cmd[bool]
		TxPipeline() Pipeline
	}

	// Hashes are a client's operations on hashes.
	Hashes interface {
		HGet(ctx context.Context, key, field string) Cmd[string]
		HMGet(ctx context.Context, key string, fields ...string) Cmd[[]any]
		HMSet(ctx context.Context, key string, values ...any) Cmd[bool]
		HSet(ctx context.Context, key string, values ...any) Cmd[int64]
		HSetNX(ctx context.Context, key, field string, value any) Cmd[bool]
		HDel(ctx context.Context, key string, fields ...string) Cmd[int64]
	}

	// A Pipeline collects operations.
	Pipeline interface {
		SRem(ctx context.Context, key string, members ...any) Cmd[int64]
		Del(ctx context.Context, keys ...string) Cmd[int64]
		HDel(ctx context.Context, key string, fields ...string) Cmd[int64]
		Exec(ctx context.Context) ([]any, error)
	}

	// A Cmd is an operation's answer.
	Cmd[T any] interface {
		Result() (T, error)
		Err() error
	}
)

// A Conn is a connection to a server. None is ever made.
type Conn struct{}

// Ping panics.
func (*Conn) Ping(context.Context) Cmd[string] { panic(errUnsupported) }

// Nil means that a key is missing.
var Nil = errors.New("redis: nil")

// PoolStats count a client's connections.
type PoolStats struct{ TotalConns, IdleConns uint32 }

// UniversalOptions are the options that distribution sets.
type UniversalOptions struct {
	Addrs                                                                    []string
	ClientName, Username, Password, SentinelUsername, SentinelPassword       string
	MasterName, IdentitySuffix                                               string
	DB, Protocol, MaxRetries, MaxRedirects                                   int
	PoolSize, MinIdleConns, MaxIdleConns, MaxActiveConns                     int
	MinRetryBackoff, MaxRetryBackoff, DialTimeout, ReadTimeout, WriteTimeout time.Duration
	PoolTimeout, ConnMaxIdleTime, ConnMaxLifetime                            time.Duration
	ContextTimeoutEnabled, PoolFIFO, ReadOnly, RouteByLatency, RouteRandomly bool
	DisableIdentity, UnstableResp3                                           bool
	TLSConfig                                                                *tls.Config
	OnConnect                                                                func(context.Context, *Conn) error
}
