package harbortest

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSwaggerRefuses: the check that all tests of Harbor stand on finds what is wrong.
func TestSwaggerRefuses(t *testing.T) {
	t.Parallel()
	s, err := published()
	if errors.Is(err, errNoSwagger) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/projects", `{"project_name":"a","metadata":{"public":"true"},"storage_limit":-1}`, ""},
		{"GET", "/projects/docker.io", "", ""},
		{"GET", "/projects/a/summary", "", ""},
		{"GET", "/robots?page=2&page_size=100", "", ""},
		{"PUT", "/robots/7", `{"id":7,"level":"system"}`, ""},
		{"GET", "/project", "", "there is no path"},
		{"PATCH", "/projects", "{}", "has no PATCH"},
		{"POST", "/projects", "", "body parameter project is missing"},
		{"POST", "/projects", `{"name":"a"}`, "has name, which is not in the schema"},
		{"POST", "/projects", `{"project_name":7}`, "project.project_name is 7, want string"},
		{"POST", "/projects", `{"metadata":{"public":true}}`, "project.metadata.public is true, want string"},
		{"POST", "/projects", `{"project_name":"` + strings.Repeat("a", 256) + `"}`, "want string"},
		{"POST", "/projects", `{"storage_limit":"1"}`, "want integer"},
		{"POST", "/projects", `{`, "is not JSON"},
		{"GET", "/projects/a?x=1", "", "no query parameter x"},
		{"GET", "/robots?page_size=101", "", "no integer in range"},
		{"GET", "/robots?page=one", "", "no integer in range"},
		{"PUT", "/robots/seven", `{}`, "robot_id is"},
		{"GET", "/projects/a", "{}", "takes no body"},
		{"HEAD", "/projects", "", "query parameter project_name is missing"},
		{"POST", "/robots", `{"permissions":[{"access":[{"resource":1}]}]}`, "permissions[0].access[0].resource"},
		{"POST", "/robots", `{"permissions":null}`, "want array"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, s.BasePath+c.path, http.NoBody)
		r.Header.Set("Content-Type", "application/json")
		_, err := s.request(r, []byte(c.body))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s %.60s: got %v, want %q", c.method, c.path, c.body, err, c.want)
		}
	}
}
