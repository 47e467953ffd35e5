package helmindex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/internal/capped"
)

const (
	maxChartVersions = 1 << 16 // of one chart
	maxChartVersion  = 1 << 20 // bytes of one version in an index
	maxVersionValues = 1 << 14 // values in one version
	maxNesting       = 64
	maxJSONValues    = 1 << 22 // values in an index, a microsecond each; 20 MB of real ones have a million
)

// parseJSON returns the entries of one chart in an index as JSON. It reads value by value and keeps only these, so
// that memory does not depend on the number of other values.
func parseJSON(index []byte, chart string) (versions []Version, err error) {
	if err := capped.CheckJSON(index, maxJSONValues); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(index))
	found := false
	err = eachField(d, func(key string) error {
		if key != "entries" {
			return skipValue(d)
		}
		found = true
		return eachField(d, func(name string) error {
			if name != chart {
				return skipValue(d)
			}
			versions, err = jsonVersions(d)
			return err
		})
	})
	if err == nil && !found {
		err = errors.New("it has no entries")
	}
	return versions, err
}

// eachField calls f for each key of an object, to read the value.
func eachField(d *json.Decoder, f func(key string) error) error {
	if err := expect(d, '{'); err != nil {
		return err
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("%v is no key", t)
		}
		if err := f(key); err != nil {
			return err
		}
	}
	return expect(d, '}')
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("want %v, have %.40v", want, t)
	}
	return err
}

// skipValue reads a value without keeping it.
func skipValue(d *json.Decoder) error {
	depth := 0
	for {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxNesting {
				return fmt.Errorf("values are nested more than %d deep", maxNesting)
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// jsonVersions reads the list of a chart's versions.
func jsonVersions(d *json.Decoder) ([]Version, error) {
	if err := expect(d, '['); err != nil {
		return nil, err
	}
	var list []Version
	for d.More() {
		if len(list) == maxChartVersions {
			return nil, fmt.Errorf("a chart has more than %d versions", maxChartVersions)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, err
		}
		if len(raw) > maxChartVersion {
			return nil, fmt.Errorf("a version of a chart has %d bytes; at most %d are read", len(raw), maxChartVersion)
		}
		var v Version
		if err := capped.JSON(raw, maxVersionValues, &v); err != nil {
			return nil, err
		}
		v.URLs = slices.Clone(v.URLs[:min(len(v.URLs), 1)]) // the first one is used
		list = append(list, v)
	}
	return list, expect(d, ']')
}
