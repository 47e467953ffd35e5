package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Commands and attributes of IP sets (linux/netfilter/ipset/ip_set.h).
const (
	ipsetDestroy, ipsetList                   = 3, 7
	ipsetProtocol, ipsetName, ipsetFlags      = 1, 2, 6
	ipsetVersion                         byte = 6
	ipsetOnlyNames                            = 1 << 1
	ipsetModule                               = "/sys/module/ip_set"
)

// DestroySets destroys the IP sets of this network namespace whose names begin with prefix, and returns their names.
// It needs no ipset program: pods of networks that use sets bring their own, and most hosts have none. The kernel keeps
// those that rules or other sets use.
func DestroySets(prefix string) (destroyed []string, err error) {
	if prefix == "" {
		return nil, errors.New("destroy IP sets: the beginning of their names is missing")
	}
	if _, err := os.Stat(ipsetModule); err != nil {
		return nil, nil //nolint:nilerr // without the module, there are none, and to ask would load it
	}
	for again := true; again; {
		again = false
		names, err := setNames()
		if err != nil {
			return destroyed, fmt.Errorf("list IP sets: %w", err)
		}
		for _, name := range names {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			switch err := destroySet(name); {
			case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT):
			case err != nil:
				return destroyed, fmt.Errorf("destroy IP set %s: %w", name, err)
			default:
				destroyed, again = append(destroyed, name), true // which may have used others
			}
		}
	}
	return destroyed, nil
}

func setNames() (names []string, err error) {
	err = askNetfilter(unix.NFNL_SUBSYS_IPSET<<8|ipsetList, unix.NLM_F_DUMP,
		[]netfilterAttribute{
			{ipsetProtocol, []byte{ipsetVersion}},
			{ipsetFlags | unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, ipsetOnlyNames)},
		},
		func(_ byte, attributes []byte) {
			if name := cString(attribute(attributes, ipsetName)); name != "" {
				names = append(names, name)
			}
		})
	return names, err
}

func destroySet(name string) error {
	return askNetfilter(unix.NFNL_SUBSYS_IPSET<<8|ipsetDestroy, unix.NLM_F_ACK, []netfilterAttribute{
		{ipsetProtocol, []byte{ipsetVersion}}, {ipsetName, append([]byte(name), 0)},
	}, func(byte, []byte) {})
}
