package usage

import "testing"

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"1": 1, "0": 0, "17B": 17, "700MB": 700e6, "700M": 700e6, "4GB": 4e9, "4GiB": 4 << 30, "4Gi": 4 << 30,
		"2TiB": 2 << 40, "64KiB": 64 << 10,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "B", "-1", "+1", "1.5GiB", "4 GiB", "4gib", "4GIB", "GiB", "0x10", "4PiB", "iB", "1iB",
		"9223372036854775808",
		"9999999999GiB", "99999999999999999999", "1_000", "４GB",
	} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}
