package deploy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/groups"
)

// TestSelectGroups decides about the groups of a bundle by the flag, the record in the cluster, and the defaults.
func TestSelectGroups(t *testing.T) {
	b := bundletest.NewBuilder(t)
	table := groups.Table{{Name: "gpu", Optional: true}, {Name: "late", Optional: true}, {Name: "web"}}
	if err := table.Put(&b.Index); err != nil {
		t.Fatal(err)
	}
	b.Index.Name, b.Index.Version = "site", "1"
	reader := b.Bundle().Reader
	for _, c := range []struct {
		name   string
		record map[string]string
		given  groups.Words
		want   string
	}{
		{"the first run", nil, groups.Words{"gpu": true}, "[gpu is on, from --group late is off, from default web is on, from default]"},
		{
			"a later run",
			map[string]string{"gpu": "on", "web": "off"},
			nil,
			"[gpu is on, from record late is off, from default web is off, from record]",
		},
		{
			"switched off",
			map[string]string{"gpu": "on", "late": "off", "web": "on"},
			groups.Words{"gpu": false},
			"[gpu is off, from --group late is off, from record web is on, from record]",
		},
	} {
		client := fake.NewClientset()
		if c.record != nil {
			text, err := json.Marshal(Record{Version: 1, Name: "site", Groups: c.record})
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.CoreV1().ConfigMaps(Namespace).Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: recordName("site"), Labels: labelsOf("site")},
				Data:       map[string]string{recordKey: string(text)},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		r := &run{
			cluster: &cluster{kube: client}, bundle: reader, report: &Report{Name: "site"},
			Options: Options{Groups: c.given, Logger: slog.New(slog.DiscardHandler)},
		}
		if err := r.selectGroups(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := fmt.Sprint(r.report.Groups); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
	r := &run{
		cluster: &cluster{kube: fake.NewClientset()}, bundle: reader, report: &Report{Name: "site"},
		Options: Options{Groups: groups.Words{"gpus": true}},
	}
	if err := r.selectGroups(t.Context()); err == nil || err.Error() != "there is no group gpus; the groups are gpu, late, web" {
		t.Error(err)
	}
}
