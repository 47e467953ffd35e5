package node

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const nfgenmsgSize = 4

// A netfilterAttribute is one of a question to the kernel's packet filter.
type netfilterAttribute struct {
	kind uint16
	data []byte
}

// askNetfilter asks the kernel's packet filter of this network namespace, and calls take with the attributes of each
// answer. A question without NLM_F_DUMP needs NLM_F_ACK, so that there is a last answer.
func askNetfilter(command, flags uint16, attributes []netfilterAttribute,
	take func(family byte, attributes []byte),
) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(s) }()
	const patience = 3
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(s, netfilterQuestion(command, flags, attributes), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	const most = 10000 // answers: a cluster with many services has as many chains
	taken := 0
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(s, buf, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		done, err := parseAnswers(buf[:n], func(family byte, attributes []byte) {
			taken++
			take(family, attributes)
		})
		if done || err != nil || taken > most {
			return err
		}
	}
}

func netfilterQuestion(command, flags uint16, attributes []netfilterAttribute) []byte {
	question := make([]byte, unix.SizeofNlMsghdr+nfgenmsgSize)
	for _, a := range attributes {
		question = binary.NativeEndian.AppendUint16(question, uint16(unix.SizeofNlAttr+len(a.data)))
		question = binary.NativeEndian.AppendUint16(question, a.kind)
		question = append(question, a.data...)
		for len(question)%unix.NLA_ALIGNTO != 0 {
			question = append(question, 0)
		}
	}
	binary.NativeEndian.PutUint32(question, uint32(len(question)))
	binary.NativeEndian.PutUint16(question[4:], command)
	binary.NativeEndian.PutUint16(question[6:], unix.NLM_F_REQUEST|flags)
	return question
}

// parseAnswers parses one message of the kernel, which may have several answers.
func parseAnswers(data []byte, take func(family byte, attributes []byte)) (done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(data))
		if size < unix.SizeofNlMsghdr || size > len(data) {
			return true, errors.New("the kernel's answer is cut off")
		}
		body := data[unix.SizeofNlMsghdr:size]
		switch kind := binary.NativeEndian.Uint16(data[4:]); kind {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return true, errors.New("the kernel's answer is cut off")
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		default:
			if len(body) >= nfgenmsgSize {
				take(body[0], body[nfgenmsgSize:])
			}
		}
		data = data[min(len(data), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false, nil
}
