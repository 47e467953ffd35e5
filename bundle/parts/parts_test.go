package parts

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/format"
)

func TestPartListGolden(t *testing.T) {
	t.Parallel()
	l := List{{Size: 100, Sum: format.Sum{1, 2}}, {Size: 7, Sum: format.Sum{0xff}}}
	const want = `{"version":1,"size":107,"parts":[` +
		`{"size":100,"sha256":"0102000000000000000000000000000000000000000000000000000000000000"},` +
		`{"size":7,"sha256":"ff00000000000000000000000000000000000000000000000000000000000000"}]}`
	if got := string(l.Marshal()); got != want {
		t.Errorf("got %s", got)
	}
	got, err := parsePartList([]byte(want))
	if err != nil || !slices.Equal(got, l) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{
		"", "{}", want + "\n", strings.Replace(want, "107", "108", 1), strings.Replace(want, ":7,", ":-7,", 1),
		strings.Replace(want, ":7,", ":07,", 1), strings.Replace(want, ":7,", ":9223372036854775807,", 1),
		strings.Replace(want, "ff0", "FF0", 1), `{"version":1,"size":0,"parts":[]}`,
		strings.Replace(strings.Replace(want, ":7,", ":0,", 1), "107", "100", 1),
	} {
		if _, err := parsePartList([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if _, err := parsePartList(make(List, Max+1).Marshal()); err == nil {
		t.Error("1000 parts are taken")
	}
}

func FuzzPartList(f *testing.F) {
	f.Add((List{{Size: 100, Sum: format.Sum{1}}, {Size: 7}}).Marshal())
	f.Add([]byte(`{"version":1,"size":9007199254740992,"parts":[{"size":9007199254740992,"sha256":"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parsePartList(data)
		if err == nil && !bytes.Equal(l.Marshal(), data) {
			t.Errorf("%q is taken for %q", data, l.Marshal())
		}
	})
}
