//go:build linux

package bootstrap

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/provision"
)

func TestPartitionTable(t *testing.T) {
	t.Parallel()
	got := partitionTable(provision.Disk{Table: "mbr", Parts: []provision.Partition{
		{Percent: 25},
		{SizeMiB: 10, StartMiB: 300, Type: "82"},
		{},
	}}, 1<<30)
	if want := "label: dos\nsize=255MiB,\nstart=300MiB, size=10MiB, type=82,\n,\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got = partitionTable(provision.Disk{Table: "gpt", Parts: []provision.Partition{{Label: "data", Percent: 100}}},
		1<<30)
	if want := "label: gpt\nname=\"data\",\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
