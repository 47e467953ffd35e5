//go:build linux

package sitetest

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
)

// A SizedEtcd answers etcdctl endpoint status and defrag as etcd 3.6 does.
type SizedEtcd struct {
	Members []etcd.Database
	Asked   []string
}

// Control answers etcdctl.
func (e *SizedEtcd) Control(cmd host.Cmd) error {
	line := strings.Join(cmd.Args, " ")
	switch {
	case strings.Contains(line, "endpoint status"):
		var list []map[string]any
		for _, m := range e.Members {
			list = append(list, map[string]any{"Endpoint": m.Endpoint, "Status": map[string]any{
				"header": map[string]any{"member_id": m.Member}, "leader": m.Leader, "dbSize": m.Size,
				"dbSizeInUse": m.Used, "errors": m.Faults,
			}})
		}
		return json.NewEncoder(cmd.Stdout).Encode(list)
	case strings.HasSuffix(line, " defrag"):
		for i, m := range e.Members {
			if strings.Contains(line, "--endpoints="+m.Endpoint+" ") {
				e.Asked = append(e.Asked, m.Endpoint)
				e.Members[i].Size = m.Used
			}
		}
		return nil
	}
	return fmt.Errorf("etcdctl %s is not known to this test", line)
}
