package member

import "strings"

// Value returns a recorded setting, "" if the record has none of this name.
func Value(settings, name string) string {
	for line := range strings.Lines(settings) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return ""
}

// WithEndpoint returns a node's record with another endpoint. Its other lines stay.
func WithEndpoint(record, kind, address string) string {
	lines := strings.SplitAfter(record, "\n")
	for i, line := range lines {
		for name, value := range map[string]string{EndpointTypeSetting: kind, EndpointSetting: address} {
			if strings.HasPrefix(line, name+" ") {
				lines[i] = name + " " + value + "\n"
			}
		}
	}
	return strings.Join(lines, "")
}

// IsEndpoint reports whether the setting is part of the cluster's endpoint.
func (s FixedSetting) IsEndpoint() bool {
	return s.Name == EndpointSetting || s.Name == EndpointTypeSetting
}
