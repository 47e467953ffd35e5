package harbortest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// swaggerPath is the place of Harbor's published OpenAPI file: beside the checkout, because it is Harbor's.
const swaggerPath = "../shared/data/harbor-v2.0-swagger.yaml"

// A swagger is the part of a Swagger 2.0 document used to check requests and answers: paths, methods, parameters and
// schemas. Everything unknown is refused, including query parameters and properties.
type swagger struct {
	BasePath    string                          `yaml:"basePath"`
	Paths       map[string]map[string]operation `yaml:"paths"`
	Parameters  map[string]parameter            `yaml:"parameters"`
	Responses   map[string]response             `yaml:"responses"`
	Definitions map[string]schema               `yaml:"definitions"`

	routes []route
}

type operation struct {
	Parameters []parameter         `yaml:"parameters"`
	Responses  map[string]response `yaml:"responses"`
}

type parameter struct {
	Ref      string  `yaml:"$ref"`
	Name     string  `yaml:"name"`
	In       string  `yaml:"in"`
	Required bool    `yaml:"required"`
	Type     string  `yaml:"type"`
	Maximum  *int64  `yaml:"maximum"`
	Schema   *schema `yaml:"schema"`
}

type response struct {
	Ref    string  `yaml:"$ref"`
	Schema *schema `yaml:"schema"`
}

type schema struct {
	Ref        string            `yaml:"$ref"`
	Type       string            `yaml:"type"`
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
	Additional *schema           `yaml:"additionalProperties"`
	Items      *schema           `yaml:"items"`
	MaxLength  int               `yaml:"maxLength"`
	Nullable   bool              `yaml:"x-nullable"`
}

// UnmarshalYAML accepts "true" as a schema that allows anything, as in additionalProperties.
func (s *schema) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return nil
	}
	type plain schema
	return n.Decode((*plain)(s))
}

type route struct {
	template string
	pattern  *regexp.Regexp
	names    []string
}

// errNoSwagger means Harbor's file is not beside the checkout.
var errNoSwagger = errors.New("Harbor's OpenAPI file is not at " + swaggerPath + ", seen from the checkout's root") //nolint:staticcheck // a name

// published is Harbor's file.
var published = sync.OnceValues(loadSwagger) //nolint:gochecknoglobals // 300 KB of YAML, read once for all tests of a package

func loadSwagger() (*swagger, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for !isFile(filepath.Join(dir, "go.mod")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil, errNoSwagger
		}
		dir = parent
	}
	data, err := os.ReadFile(filepath.Join(dir, swaggerPath))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoSwagger
	}
	if err != nil {
		return nil, err
	}
	var s swagger
	if err := yaml.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", swaggerPath, err)
	}
	placeholder := regexp.MustCompile(`\\\{([a-z_]+)\\\}`)
	for template := range s.Paths {
		quoted := regexp.QuoteMeta(template)
		r := route{template: template, pattern: regexp.MustCompile("^" +
			placeholder.ReplaceAllString(quoted, "([^/]+)") + "$")}
		for _, m := range placeholder.FindAllStringSubmatch(quoted, -1) {
			r.names = append(r.names, m[1])
		}
		s.routes = append(s.routes, r)
	}
	slices.SortFunc(s.routes, func(a, b route) int { // literal paths before those with names
		if len(a.names) != len(b.names) {
			return len(a.names) - len(b.names)
		}
		return strings.Compare(a.template, b.template)
	})
	return &s, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// request checks a request with its body and returns its operation.
func (s *swagger) request(r *http.Request, body []byte) (*operation, error) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), s.BasePath)
	for _, route := range s.routes {
		m := route.pattern.FindStringSubmatch(path)
		if m == nil {
			continue
		}
		op, ok := s.Paths[route.template][strings.ToLower(r.Method)]
		if !ok {
			return nil, fmt.Errorf("%s has no %s", route.template, r.Method)
		}
		named := map[string]string{}
		for i, name := range route.names {
			named[name], _ = url.PathUnescape(m[i+1])
		}
		return &op, s.parameters(op, r, named, body)
	}
	return nil, fmt.Errorf("there is no path %s", path)
}

func (s *swagger) parameters(op operation, r *http.Request, path map[string]string, body []byte) error {
	var errs []error
	query, allowed, bodyAllowed := r.URL.Query(), map[string]bool{}, false
	for _, p := range op.Parameters {
		if p.Ref != "" {
			p = s.Parameters[p.Ref[strings.LastIndexByte(p.Ref, '/')+1:]]
		}
		var text string
		var given bool
		switch p.In {
		case "query":
			allowed[p.Name] = true
			text, given = query.Get(p.Name), query.Has(p.Name)
		case "header":
			text = r.Header.Get(p.Name)
			given = text != ""
		case "path":
			text, given = path[p.Name], true
		case "body":
			bodyAllowed, given = true, len(body) > 0
			if given {
				errs = append(errs, s.json(*p.Schema, body, p.Name))
			}
		}
		if p.Required && !given {
			errs = append(errs, fmt.Errorf("%s parameter %s is missing", p.In, p.Name))
		} else if given && p.In != "body" {
			errs = append(errs, p.check(text))
		}
	}
	for name := range query {
		if !allowed[name] {
			errs = append(errs, fmt.Errorf("there is no query parameter %s", name))
		}
	}
	if len(body) > 0 && !bodyAllowed {
		errs = append(errs, errors.New("it takes no body"))
	}
	if len(body) > 0 && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		errs = append(errs, fmt.Errorf("its body is %q, not JSON", r.Header.Get("Content-Type")))
	}
	return errors.Join(errs...)
}

func (p parameter) check(text string) error {
	switch p.Type {
	case "integer":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || p.Maximum != nil && n > *p.Maximum {
			return fmt.Errorf("%s is %q, which is no integer in range", p.Name, text)
		}
	case "boolean":
		if text != "true" && text != "false" {
			return fmt.Errorf("%s is %q, not a boolean", p.Name, text)
		}
	}
	return nil
}

// answer checks the stand-in's own answer.
func (s *swagger) answer(op *operation, status int, body []byte) error {
	r, ok := op.Responses[strconv.Itoa(status)]
	// the file lacks it for POST of projects and robots
	if !ok && (status == http.StatusForbidden || status == http.StatusConflict) {
		r, ok = s.Responses[strconv.Itoa(status)]
	}
	if !ok {
		return fmt.Errorf("the operation has no answer %d", status)
	}
	if r.Ref != "" {
		r = s.Responses[r.Ref[strings.LastIndexByte(r.Ref, '/')+1:]]
	}
	if r.Schema == nil {
		return nil
	}
	return s.json(*r.Schema, body, "answer")
}

func (s *swagger) json(want schema, data []byte, at string) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("%s is not JSON: %w", at, err)
	}
	return s.value(want, v, at)
}

// value checks a value, and names the place of a mismatch.
func (s *swagger) value(want schema, v any, at string) error {
	nullable := want.Nullable
	if want.Ref != "" {
		want = s.Definitions[want.Ref[strings.LastIndexByte(want.Ref, '/')+1:]]
	}
	fits := true
	if want.Type == "" {
		return nil
	}
	switch v := v.(type) {
	case nil:
		fits = nullable
	case string:
		fits = want.Type == "string" && (want.MaxLength == 0 || len(v) <= want.MaxLength)
	case bool:
		fits = want.Type == "boolean"
	case json.Number:
		_, err := v.Int64()
		fits = want.Type == "number" || want.Type == "integer" && err == nil
	case []any:
		if fits = want.Type == "array" && want.Items != nil; fits {
			for i, e := range v {
				if err := s.value(*want.Items, e, fmt.Sprintf("%s[%d]", at, i)); err != nil {
					return err
				}
			}
		}
	case map[string]any:
		if fits = want.Type == "object"; fits {
			return s.object(want, v, at)
		}
	}
	if !fits {
		return fmt.Errorf("%s is %v, want %s", at, v, want.Type)
	}
	return nil
}

func (s *swagger) object(want schema, v map[string]any, at string) error {
	for _, name := range want.Required {
		if _, ok := v[name]; !ok {
			return fmt.Errorf("%s lacks %s", at, name)
		}
	}
	for name, e := range v {
		p, ok := want.Properties[name]
		if !ok && want.Additional != nil {
			p, ok = *want.Additional, true
		}
		if !ok {
			return fmt.Errorf("%s has %s, which is not in the schema", at, name)
		}
		if err := s.value(p, e, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}
