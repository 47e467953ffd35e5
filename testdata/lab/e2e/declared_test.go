package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// declared compares what the installation used with what the closure says that somebody needs: items read out of the
// bundle by install.log, and images by what the hosts' runtimes have.
func (th *thread) declared(t *testing.T) {
	needed := th.needed(t)
	log, err := os.ReadFile(filepath.Join(strings.TrimSuffix(th.lab.InventoryFile(), ".yaml")+".work", "install.log"))
	if err != nil {
		t.Fatal(err)
	}
	opened := map[string]bool{}
	for line := range strings.Lines(string(log)) {
		if _, item, ok := strings.Cut(strings.TrimSpace(line), "opened in the bundle: "); ok {
			opened[item] = true
		}
	}
	if len(opened) < 8 {
		t.Fatalf("only %d items were opened: install.log is not what this test thinks it is", len(opened))
	}
	for item := range opened {
		if !needed[item] {
			t.Errorf("%s was read, and no task declares it", item)
		}
	}
	pulled := 0
	for number := 1; number <= 2; number++ {
		for ref := range strings.Lines(th.on(t, number, "ctr -n k8s.io images ls -q 2>/dev/null")) {
			ref = strings.TrimSpace(ref)
			if strings.HasPrefix(ref, "sha256:") || strings.Contains(ref, "@") {
				continue // other names of the same images
			}
			pulled++
			if !needed["image "+ref] {
				t.Errorf("host%d has %s, and nobody declares it", number, ref)
			}
		}
	}
	if pulled < 8 {
		t.Errorf("only %d images are on the hosts: that is not what a cluster has", pulled)
	}
}

// needed returns KIND REFERENCE of all that the bundle's closure says somebody needs.
func (th *thread) needed(t *testing.T) map[string]bool {
	t.Helper()
	var closure struct {
		Items []struct {
			Kind, Ref string
			NeededBy  []json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(th.connected(t, "inspect", "--closure", "--json", th.bundle()).must(t, 0).stdout),
		&closure); err != nil {
		t.Fatal(err)
	}
	needed := map[string]bool{}
	for _, item := range closure.Items {
		if len(item.NeededBy) > 0 {
			needed[item.Kind+" "+item.Ref] = true
		}
	}
	return needed
}
