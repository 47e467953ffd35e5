package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle"
	"github.com/kkbundle/kkbundle/cmd/internal/manual"
)

func newDocsCmd(g *globals) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "docs",
		Short: "Write the documentation as a web site",
		Long: `Writes the documentation of this version into a directory, as web pages with a search. Open index.html in a browser:
the pages need no server and no network. kkbundle serve has the same pages at /docs/.

The directory must be empty or absent.`,
		Example: "  kkbundle docs -o manual",
		Args:    takes(),
		RunE:    func(*cobra.Command, []string) error { return runDocs(g, output) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "kkbundle-docs", "`directory` to write")
	return cmd
}

// newManual makes the manual of this version.
func newManual() (manual.Site, error) { return manual.New(kkbundle.Documentation(), programVersion()) }

// docsResult is the JSON output of docs.
type docsResult struct {
	Version int    `json:"version"` // 1
	Files   int    `json:"files"`
	Index   string `json:"index"` // path of the first page
}

func runDocs(g *globals, dir string) error {
	site, err := newManual()
	if err != nil {
		return err
	}
	if err := site.Write(dir); err != nil {
		return err
	}
	r := docsResult{Version: 1, Files: len(site), Index: filepath.Join(dir, "index.html")}
	if g.JSON {
		return g.PrintJSON(r)
	}
	return g.Result("%s", r.Index)
}
