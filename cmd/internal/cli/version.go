package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the Makefile from git; a plain `go install` takes the module's version.
var version string

type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{Version: programVersion(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if g.JSON {
				return g.PrintJSON(v)
			}
			_, err := fmt.Fprintln(g.Out, versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("kkbundle %s %s/%s %s", programVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
