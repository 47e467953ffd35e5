package cli

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

func newInventoryCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "Write, check and show inventories",
		Long: `Writes, checks and shows inventories, which list the hosts, their roles, and how to connect to them. Inventories of
KubeKey v4, cluster files of KubeKey v3 and KKClusters are read directly; keys that cannot be carried over are
reported with their place.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStarterCmd(g, site.DefaultInventory, "an inventory"), newInventoryCheckCmd(g),
		newInventoryShowCmd(g))
	return cmd
}

func newInventoryCheckCmd(g *globals) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use:     "check INVENTORY",
		Short:   "Check an inventory",
		Long:    "Lists all errors of an inventory with file, line and column; with -c also conflicts with the cluster file. Connects to no host.",
		Example: "  kkbundle inventory check inventory.yaml -c cluster.yaml",
		Args:    takes("INVENTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			inv, err := site.ReadInventory(g.Console, args[0])
			if err != nil {
				return err
			}
			hosts := inv.Hosts()
			if cluster != "" {
				c, err := site.ReadCluster(g.Console, cluster, nil)
				if err != nil {
					return err
				}
				if err := fit(inv, c); err != nil {
					return err
				}
			}
			g.noteGaps(inv.CheckInstall())
			if g.JSON {
				return g.PrintJSON(checkResult{Version: 1, File: args[0], Hosts: len(hosts)})
			}
			g.Note("%s: %s, nothing wrong", args[0], plain.Count(len(hosts), "host"))
			return nil
		},
	}
	cmd.Flags().StringVarP(&cluster, "cluster", "c", "", "a cluster file that the hosts must fit")
	return cmd
}

// fit checks hosts, with the inventory's settings for each, against a cluster. The error joins all problems.
func fit(inv *manifest.Inventory, c *manifest.Cluster) error {
	var all document.Problems
	for _, h := range inv.Hosts() {
		_, err := c.ForHost(inv, h)
		list, ok := errors.AsType[document.Problems](err)
		if err != nil && !ok {
			return err
		}
		all = append(all, list...)
	}
	err := inv.Check(c)
	list, ok := errors.AsType[document.Problems](err)
	if err != nil && !ok {
		return err
	}
	return append(all, list...).Err()
}

func newInventoryShowCmd(g *globals) *cobra.Command {
	output := showTable
	cmd := &cobra.Command{
		Use:   "show INVENTORY",
		Short: "Show the hosts with all their settings",
		Long: `Shows each host with all its settings; ranges, vars, groupVars and bastions are resolved. -o yaml prints an
equivalent inventory host by host, also for files of KubeKey. Secrets are never shown.`,
		Example: "  kkbundle inventory show inventory.yaml\n  kkbundle inventory show kubekey-inventory.yaml -o yaml > inventory.yaml",
		Args:    takes("INVENTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			format, err := g.showFormat(output)
			if err != nil {
				return err
			}
			inv, err := site.ReadInventory(g.Console, args[0])
			if err != nil {
				return err
			}
			switch format {
			case showYAML:
				return g.printYAML(inv.Resolved())
			case showJSON:
				return g.PrintJSON(newInventoryResult(args[0], inv.Hosts()))
			}
			return printHosts(g, inv.Hosts())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", showTable, "table, yaml or json")
	return cmd
}

func printHosts(g *globals, hosts []manifest.Host) error {
	var rows [][]string
	for _, h := range hosts {
		var internal, roles, hops []string
		for _, a := range []netip.Addr{h.InternalIPv4, h.InternalIPv6} {
			if a.IsValid() {
				internal = append(internal, a.String())
			}
		}
		for _, r := range h.Roles {
			if r != manifest.RoleCluster {
				roles = append(roles, string(r))
			}
		}
		for _, hop := range h.Hops {
			hops = append(hops, hop.Name)
		}
		row := []string{h.Name, "local", "", "", ""}
		if !h.Local {
			row = []string{
				h.Name, net.JoinHostPort(h.Address, strconv.Itoa(h.SSH.Port)), h.SSH.User, loginText(h.SSH),
				strings.Join(hops, ", "),
			}
		}
		rows = append(rows, append(row, strings.Join(internal, ", "), strings.Join(roles, ", ")))
	}
	return g.PrintTable([]string{"HOST", "ADDRESS", "USER", "LOGIN", "THROUGH", "INTERNAL", "ROLES"}, rows)
}

// loginText describes the login without secrets.
func loginText(s manifest.SSH) string {
	var ways []string
	for _, one := range []struct{ what, value string }{
		{"key ", s.Key},
		{"password in $", s.PasswordEnv},
		{"password in ", s.PasswordFile},
	} {
		if one.value != "" {
			ways = append(ways, one.what+one.value)
		}
	}
	if s.PrivateKey.IsSet() {
		ways = append(ways, "key in the inventory")
	}
	if s.Password.IsSet() {
		ways = append(ways, "password in the inventory")
	}
	return cmp.Or(strings.Join(ways, ", "), "agent, own keys")
}

// inventoryResult is the JSON output of inventory show.
type inventoryResult struct {
	Version int          `json:"version"` // 1
	File    string       `json:"file"`
	Hosts   []hostResult `json:"hosts"`
}

type hostResult struct {
	Name         string            `json:"name"`
	Local        bool              `json:"local,omitempty"`
	InternalIPv4 string            `json:"internalIPv4,omitempty"`
	InternalIPv6 string            `json:"internalIPv6,omitempty"`
	SSH          *sshResult        `json:"ssh,omitempty"` // nil where local is true
	Hops         []sshResult       `json:"hops,omitempty"`
	Sudo         *secretResult     `json:"sudo,omitempty"`
	Roles        []manifest.Role   `json:"roles,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Taints       []manifest.Taint  `json:"taints,omitempty"` // as kubectl writes them
}

type sshResult struct {
	Name    string `json:"name,omitempty"` // of a hop
	Address string `json:"address"`
	Port    int    `json:"port"`
	User    string `json:"user"`
	Key     string `json:"key,omitempty"` // path
	// KeyInFile means that the inventory has the key itself.
	KeyInFile bool `json:"keyInFile,omitempty"`
	secretResult
}

// secretResult is the place of a password.
type secretResult struct {
	PasswordEnv    string `json:"passwordEnv,omitempty"`
	PasswordFile   string `json:"passwordFile,omitempty"`
	PasswordInFile bool   `json:"passwordInFile,omitempty"` // in the inventory
}

func newInventoryResult(file string, hosts []manifest.Host) inventoryResult {
	out := inventoryResult{Version: 1, File: file, Hosts: []hostResult{}}
	for _, h := range hosts {
		one := hostResult{
			Name: h.Name, Local: h.Local, Roles: h.Roles, Labels: h.Labels, Annotations: h.Annotations,
			Taints: h.Taints,
		}
		if h.InternalIPv4.IsValid() {
			one.InternalIPv4 = h.InternalIPv4.String()
		}
		if h.InternalIPv6.IsValid() {
			one.InternalIPv6 = h.InternalIPv6.String()
		}
		if !h.Local {
			one.SSH = newSSHResult("", h.Address, h.SSH)
		}
		for _, hop := range h.Hops {
			one.Hops = append(one.Hops, *newSSHResult(hop.Name, hop.Address, hop.SSH))
		}
		if h.Sudo != (manifest.Sudo{}) {
			one.Sudo = &secretResult{h.Sudo.PasswordEnv, h.Sudo.PasswordFile, h.Sudo.Password.IsSet()}
		}
		out.Hosts = append(out.Hosts, one)
	}
	return out
}

func newSSHResult(name, address string, s manifest.SSH) *sshResult {
	return &sshResult{
		Name: name, Address: address, Port: s.Port, User: s.User, Key: s.Key, KeyInFile: s.PrivateKey.IsSet(),
		secretResult: secretResult{s.PasswordEnv, s.PasswordFile, s.Password.IsSet()},
	}
}
