package scalar

import "testing"

func TestScalars(t *testing.T) {
	for text, want := range map[string]int64{
		"1700Mi": 1700 << 20, "1024Mi": 1 << 30, "2G": 2e9, "1.5Gi": 3 << 29, "100k": 100_000, "7": 7, "0": 0,
		"": -1, "Mi": -1, "-1": -1, "1e3": -1, "1.2.3": -1, "9999999P": -1, "1 Gi": -1, "5MB": -1,
	} {
		var q Quantity
		if err := q.UnmarshalText([]byte(text)); (err != nil) != (want < 0) || err == nil && q.Bytes() != want {
			t.Errorf("quantity %q: got %d, %v; want %d", text, q.Bytes(), err, want)
		}
	}
	for text, want := range map[string]string{
		"10.0.0.0/16": "10.0.0.0/16", "10.0.0.0/16, fd00::/48": "10.0.0.0/16,fd00::/48",
		"10.0.0.0/16/fd00::/48": "10.0.0.0/16,fd00::/48", "fd00::/48": "fd00::/48",
		"": "", "10.0.0.0": "", "10.0.0.1/16": "", "10.0.0.0/16,10.1.0.0/16": "", "10.0.0.0/16,fd00::/48,fd01::/48": "",
	} {
		var c CIDRs
		if err := c.UnmarshalText([]byte(text)); (err != nil) != (want == "") || err == nil && c.String() != want {
			t.Errorf("networks %q: got %s, %v; want %q", text, c, err, want)
		}
	}
	for text, want := range map[string]string{
		"0755": "0755", "755": "0755", "0o644": "0644", "4755": "4755", "0": "",
		"8": "", "77777": "",
	} {
		var m FileMode
		if err := m.UnmarshalText([]byte(text)); (err != nil) != (want == "") || err == nil && m.String() != want {
			t.Errorf("mode %q: got %s, %v; want %q", text, m, err, want)
		}
	}
}
