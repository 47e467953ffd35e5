package site

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/manifest/values"
)

// --set keeps its meaning for everything that a cluster file has.
func TestSplitSettings(t *testing.T) {
	t.Parallel()
	table := values.Table{{Name: "domain", At: values.Site}, {Name: "kubernetes"}}
	ofCluster, ofTable := SplitSettings([]string{
		"domain=a=b", "kubernetes={version: v1}", "kubernetes.maxPods=200", "domain.name=x", "metrics=true",
	}, table)
	if !slices.Equal(ofTable, []string{"domain=a=b"}) ||
		!slices.Equal(ofCluster, []string{"kubernetes={version: v1}", "kubernetes.maxPods=200", "domain.name=x", "metrics=true"}) {
		t.Errorf("%q %q", ofCluster, ofTable)
	}
	if ofCluster, ofTable = SplitSettings([]string{"domain=a"}, nil); len(ofCluster) != 1 || ofTable != nil {
		t.Errorf("without a table: %q %q", ofCluster, ofTable)
	}
}
