package node

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"
)

// Hosts find out whether they reach each other: on each of them `kkbundle-node listen` listens for a moment, and
// `kkbundle-node reach` dials the others. Both know a token for this one attempt, so that a wrong machine or an
// answering firewall is recognized, and no other peer gets an answer.

// A Listen lists the ports to listen on.
type Listen struct {
	// Token is a result of NewToken.
	Token string `json:"token"`
	// Address is one of the machine's own.
	Address netip.Addr   `json:"address"`
	Ports   []ListenPort `json:"ports"`
}

// ListenPort is a port of TCP or UDP.
type ListenPort struct {
	Network string `json:"network"` // "tcp" or "udp"
	Port    int    `json:"port"`
}

// Listening is the answer to Listen, with its ports in their order.
type Listening struct {
	Ports []PortState `json:"ports"`
}

// PortState is the state of a port to listen on.
type PortState struct {
	ListenPort
	// Taken means that a program already has the port: it is dialled all the same.
	Taken bool `json:"taken,omitempty"`
	// Problem is the reason that listening failed, if the port is not taken.
	Problem string `json:"problem,omitempty"`
}

// A Reach lists the targets to dial.
type Reach struct {
	// Token is that of the peer's Listen.
	Token   string        `json:"token"`
	Targets []ReachTarget `json:"targets"`
}

// ReachTarget is a port of another host.
type ReachTarget struct {
	Address netip.Addr `json:"address"`
	ListenPort
	// Service means that a program of the other host has the port and does not know the token. Over TCP a connection is
	// enough then; over UDP nothing can be found out.
	Service bool `json:"service,omitempty"`
	// MTU also requests the path MTU.
	MTU bool `json:"mtu,omitempty"`
}

// Reached is the answer to Reach, with its targets in their order.
type Reached struct {
	Targets []ReachedTarget `json:"targets"`
}

// ReachedTarget is the result for a target.
type ReachedTarget struct {
	OK bool `json:"ok"`
	// Problem is the reason for a failure: "refused", "timeout", "another machine answers", or the kernel's message.
	Problem string `json:"problem,omitempty"`
	// MTU is the largest IP packet that arrived unfragmented, in bytes, and Want the MTU of the interface here; both
	// are 0 if not requested or unknown.
	MTU  int `json:"mtu,omitempty"`
	Want int `json:"want,omitempty"`
}

// Limits of one attempt.
const (
	maxListened = 100
	maxReached  = 2000
	// ListenTime is the maximal lifetime of listeners.
	ListenTime = time.Minute
	// reachParallel is the number of concurrently dialled targets.
	reachParallel = 64
	tokenBytes    = 16
)

// NewToken makes a token for one attempt.
func NewToken() string {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func parseToken(s string) ([]byte, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != tokenBytes {
		return nil, fmt.Errorf("the token is not %d hexadecimal digits", 2*tokenBytes)
	}
	return b, nil
}

func (p ListenPort) check() error {
	if (p.Network != "tcp" && p.Network != "udp") || p.Port < 1 || p.Port > 65535 {
		return fmt.Errorf("there is no port %q %d", p.Network, p.Port)
	}
	return nil
}

// ask sends a question and reads its answer.
func ask[T any](s io.ReadWriter, question any) (answer T, err error) {
	if err := wire.WriteMessage(s, question); err != nil {
		return answer, err
	}
	err = wire.ReadMessage(s, &answer, wire.MaxAnswer)
	return answer, err
}

// AskListen starts an attempt on a host over the streams of `kkbundle-node listen`. It listens until s is closed.
func AskListen(s io.ReadWriter, l Listen) (Listening, error) {
	answer, err := ask[Listening](s, l)
	if err != nil {
		return answer, err
	}
	if len(answer.Ports) != len(l.Ports) {
		return answer, fmt.Errorf("%d answers about %d ports", len(answer.Ports), len(l.Ports))
	}
	return answer, nil
}

// AskReach dials over the streams of `kkbundle-node reach`.
func AskReach(s io.ReadWriter, r Reach) (Reached, error) {
	answer, err := ask[Reached](s, r)
	if err != nil {
		return answer, err
	}
	if len(answer.Targets) != len(r.Targets) {
		return answer, fmt.Errorf("%d answers about %d targets", len(answer.Targets), len(r.Targets))
	}
	return answer, nil
}

// reason returns the reason of a network error, in the kernel's words if possible.
func reason(err error) string {
	var timeout interface{ Timeout() bool }
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &errno):
		return errno.Error()
	default:
		return err.Error()
	}
}
