package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is VERSION,COMMIT,DATE (of the commit), set by the Makefile from git. Without it, Go's own record counts.
var version string

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Date     string `json:"date,omitempty"` // of the commit, RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{
				Version: programVersion(), Commit: builtFrom(1, "vcs.revision"),
				Date: builtFrom(2, "vcs.time"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
			}
			if g.JSON {
				return g.PrintJSON(v)
			}
			_, err := fmt.Fprintln(g.Out, versionLine())
			return err
		},
	}
}

func versionLine() string {
	const digits = 12
	from := ""
	if c := builtFrom(1, "vcs.revision"); c != "" {
		day, _, _ := strings.Cut(builtFrom(2, "vcs.time"), "T")
		from = fmt.Sprintf("(%s %s) ", c[:min(digits, len(c))], day)
	}
	return fmt.Sprintf("kkbundle %s %s%s/%s %s", programVersion(), from, runtime.GOOS, runtime.GOARCH,
		runtime.Version())
}

// builtFrom returns a field of version, or else Go's record of it.
func builtFrom(field int, key string) string {
	if fields := strings.Split(version, ","); field < len(fields) {
		return fields[field]
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

func programVersion() string {
	if own, _, _ := strings.Cut(version, ","); own != "" {
		return own
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
