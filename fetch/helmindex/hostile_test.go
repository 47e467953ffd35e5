package helmindex

import (
	"fmt"
	"runtime/metrics"
	"strings"
	"testing"
	"time"
)

// peak returns the largest heap during f, in bytes.
func peak(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before, most := read(), uint64(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			most = max(most, read())
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	<-ended
	return most - min(before, most)
}

// hostileIndexes have up to 24 MB, which gzip packs into some 25 KB. Some are refused at once, others are just below
// a bound.
func hostileIndexes() map[string][]byte {
	many := func(one string) string { return strings.Repeat(one, (24<<20)/len(one)) }
	return map[string][]byte{
		"versions of the chart":    []byte(`{"entries":{"app":[` + many("{},") + `{}]}}`),
		"versions of another":      []byte(`{"entries":{"other":[` + many("{},") + `{}],"app":[{"version":"1.0.0"}]}}`),
		"charts":                   []byte(`{"entries":{` + many(`"a":0,`) + `"app":[{"version":"1.0.0"}]}}`),
		"addresses of one version": []byte(`{"entries":{"app":[{"version":"1.0.0","urls":[` + many(`"",`) + `""]}]}}`),
		"nesting":                  []byte(`{"generated":` + many("[")),
		"commas of YAML":           []byte("entries:\n  app: [" + many("{},") + "{}]\n"),
		"a few commas of YAML":     []byte("entries:\n  app: [" + strings.Repeat("{},", (7<<20)/3) + "{}]\n"),
		"keys of one YAML object":  []byte("entries: {" + strings.Repeat("a: ,", 5000) + "app: [{version: 1.0.0}]}\n"),
		"keys of one version": []byte("entries:\n  app:\n  - version: 1.0.0\n    x: {" +
			strings.Repeat("a: ,", 5000) + "}\n"),
		"returns of YAML":        []byte("x:\r" + strings.Repeat(" a:\r", (8<<20)/4-20)),
		"line breaks of Unicode": []byte("x:\n" + strings.Repeat(" a:\u0085", (8<<20)/5-20)),
		"pairs of YAML": []byte("entries:\n  app:\n  - version: 1.0.0\n    x: [" +
			strings.Repeat("a: b,", 1<<19-50) + "a]\n"),
		"most nodes of YAML": []byte("entries:\n  app:\n  - version: 1.0.0\n    x: [" +
			strings.Repeat("a: b,", 1<<18-50) + "a]\n"),
		"most addresses of YAML": []byte("entries:\n  app:\n  - version: 1.0.0\n    urls: [" +
			strings.Repeat("a,", 1<<19-50) + "a]\n"),
		"most versions": []byte(`{"entries":{"app":[{"version":"1.0.0"}],"other":[` +
			strings.Repeat(`{},`, 1<<20) + `{}]}}`),
		"a chart of YAML": []byte("entries:\n  app:\n  - version: 1.0.0\n    urls: [" +
			strings.Repeat("a,", 3<<20) + "a]\n"),
	}
}

// TestHostileChartIndex holds the memory for an index below a bound, whatever it has.
func TestHostileChartIndex(t *testing.T) { //nolint:paralleltest // it measures the heap
	const most = 200 << 20
	for name, index := range hostileIndexes() {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // it measures the heap
			var versions []Version
			var err error
			used := peak(func() { versions, err = Parse(index, "app") })
			t.Logf("%d MB, %d versions, %v", used>>20, len(versions), err)
			if used > most {
				t.Errorf("it took %d MB; at most %d are allowed", used>>20, most>>20)
			}
			if err == nil && (len(versions) != 1 || versions[0].Version != "1.0.0") {
				t.Errorf("%d versions", len(versions))
			}
		})
	}
}

func TestJSONIndex(t *testing.T) {
	t.Parallel()
	index := []byte(`{"apiVersion":"v1","entries":{"other":[{"version":"9.0.0","maintainers":[{"name":"x"}]}],"app":[{"version":"1.0.0","urls":["a.tgz"],"digest":"ab"},{"version":"2.0.0"}]},"generated":"now"}`)
	got, err := Parse(index, "app")
	if err != nil || fmt.Sprint(got) != "[{1.0.0 [a.tgz] ab} {2.0.0 [] }]" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]byte{
		[]byte(`{}`), []byte(`{"entries":[]}`), index[:len(index)-20],
		[]byte(`{"entries":{"app":{}}}`),
	} {
		if got, err := Parse(bad, "app"); err == nil {
			t.Errorf("%.40s: %v", bad, got)
		}
	}
}
