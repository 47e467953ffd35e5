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
)

// Hosts find out whether they reach each other: on each of them `kkbundle-node listen` listens for a moment, and
// `kkbundle-node reach` dials the others. Both know a token of this one attempt, so that a wrong machine or a firewall
// that answers in another's place is not taken for the right one, and nobody else gets an answer.

// A Listen says where to listen.
type Listen struct {
	// Token is as NewToken makes it.
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

// PortState says whether a port is listened on.
type PortState struct {
	ListenPort
	// Taken tells that a program has the port already: it is dialled as it is.
	Taken bool `json:"taken,omitempty"`
	// Problem says why it is not listened on, if it is not taken.
	Problem string `json:"problem,omitempty"`
}

// A Reach says what to dial.
type Reach struct {
	// Token is that of the Listen on the other side.
	Token   string        `json:"token"`
	Targets []ReachTarget `json:"targets"`
}

// ReachTarget is a port of another host.
type ReachTarget struct {
	Address netip.Addr `json:"address"`
	ListenPort
	// Service tells that a program of the other host has the port, which does not know the token. Over TCP it is enough
	// then that the connection is made; over UDP nothing can be found out.
	Service bool `json:"service,omitempty"`
	// MTU asks for the size of packets that come through, too.
	MTU bool `json:"mtu,omitempty"`
}

// Reached is the answer to Reach, with its targets in their order.
type Reached struct {
	Targets []ReachedTarget `json:"targets"`
}

// ReachedTarget says whether a port was reached.
type ReachedTarget struct {
	OK bool `json:"ok"`
	// Problem says why not: "refused", "timeout", "another machine answers", or the kernel's words.
	Problem string `json:"problem,omitempty"`
	// MTU is the largest IP packet that came through whole, in bytes, and Want what the interface here would send; both
	// are 0 if it was not asked for or could not be found out.
	MTU  int `json:"mtu,omitempty"`
	Want int `json:"want,omitempty"`
}

// Limits of one attempt.
const (
	maxListened = 100
	maxReached  = 2000
	// ListenTime is how long listeners live at most.
	ListenTime = time.Minute
	// reachParallel is how many targets are dialled at a time.
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

// AskListen starts an attempt on a host over the streams of `kkbundle-node listen`. It listens until s is closed.
func AskListen(s io.ReadWriter, l Listen) (Listening, error) {
	var answer Listening
	if err := writeMessage(s, l); err != nil {
		return answer, err
	}
	if err := readMessage(s, &answer, maxAnswer); err != nil {
		return answer, err
	}
	if len(answer.Ports) != len(l.Ports) {
		return answer, fmt.Errorf("%d answers about %d ports", len(answer.Ports), len(l.Ports))
	}
	return answer, nil
}

// AskReach dials over the streams of `kkbundle-node reach`.
func AskReach(s io.ReadWriter, r Reach) (Reached, error) {
	var answer Reached
	if err := writeMessage(s, r); err != nil {
		return answer, err
	}
	if err := readMessage(s, &answer, maxAnswer); err != nil {
		return answer, err
	}
	if len(answer.Targets) != len(r.Targets) {
		return answer, fmt.Errorf("%d answers about %d targets", len(answer.Targets), len(r.Targets))
	}
	return answer, nil
}

// reason says why something on the network failed, in the kernel's words where it has some.
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
