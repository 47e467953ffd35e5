package deploy_test

import (
	"log"
	"os"
	"testing"

	helm "github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/charts/sandbox"
)

// TestMain makes the test binary a sandbox process if it is started as one, as main of every program that installs
// charts has to.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == sandbox.Command {
		if err := helm.Tasks().Run(os.Stdin, os.Stdout); err != nil {
			log.Fatal(err)
		}
		return
	}
	m.Run()
}
