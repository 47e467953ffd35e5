package registry_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

func harborOptions(s *harbortest.Server) registry.PushOptions {
	return registry.PushOptions{
		Registry: s.Host, Auth: s.Keychain(), PlainHTTP: s.Plain, Retries: 2,
		Harbor: &registry.HarborOptions{},
	}
}

// twoHosts returns a bundle of images from two upstream hosts, which are part of their projects' names.
func twoHosts(t *testing.T) (b *bundletest.Bundle, projects []string) {
	t.Helper()
	projects = []string{harbortest.Unique("hub.example"), harbortest.Unique("quay.example")}
	builder := bundletest.NewBuilder(t)
	builder.Image(projects[0]+"/library/app:1", bundletest.RandomImage(t, 1, 2, 3000))
	builder.Image(projects[1]+"/team/app:1", bundletest.RandomImage(t, 1, 2, 3000))
	return builder.Bundle(), projects
}

func harborStates(sum registry.PushSummary) map[string]string {
	got := map[string]string{}
	if sum.Harbor != nil {
		for _, p := range sum.Harbor.Projects {
			got[p.Name] = p.State
		}
	}
	return got
}

func TestPushHarborCreatesProjects(t *testing.T) {
	t.Parallel()
	s := harbortest.Start(t, harbortest.Options{RobotsFull: 250})
	b, projects := twoHosts(t)
	o := harborOptions(s)
	o.DryRun = true
	sum := push(t, b, o)
	if diff := cmp.Diff(harborStates(sum), map[string]string{
		projects[0]: registry.ProjectMissing,
		projects[1]: registry.ProjectMissing,
	}); diff != "" {
		t.Errorf("dry run (-got +want):\n%s", diff)
	}
	o.DryRun, o.Harbor.Robot, o.Harbor.Quota = false, harbortest.Unique("hosts"), 1<<30
	sum = push(t, b, o)
	if diff := cmp.Diff(harborStates(sum), map[string]string{
		projects[0]: registry.ProjectCreated,
		projects[1]: registry.ProjectCreated,
	}); diff != "" {
		t.Errorf("first (-got +want):\n%s", diff)
	}
	if sum.ItemsPushed != 2 || sum.BlobsMounted != 3 || len(sum.Warnings) != 0 ||
		sum.Harbor.Projects[0].Quota != 1<<30 {
		t.Errorf("%+v", sum)
	}
	robot := *sum.Harbor.Robot
	if robot.Secret == "" || !strings.HasSuffix(robot.Name, o.Harbor.Robot) {
		t.Fatalf("robot %q without secret or with another name", robot.Name)
	}
	checkRobot(t, s, sum, robot)

	sum = push(t, b, o)
	if diff := cmp.Diff(harborStates(sum), map[string]string{
		projects[0]: registry.ProjectExists,
		projects[1]: registry.ProjectExists,
	}); diff != "" || sum.ItemsPresent != 2 {
		t.Errorf("second: %+v (-got +want):\n%s", sum, diff)
	}
	if again := *sum.Harbor.Robot; again.Name != robot.Name || again.Secret != "" {
		t.Errorf("robot %+v, want %s without its secret", again.Name, robot.Name)
	}

	other, _ := twoHosts(t) // the account gets what it lacks
	if sum = push(t, other, o); sum.Harbor.Robot.Secret != "" {
		t.Errorf("a secret is told again")
	}
	checkRobot(t, s, sum, robot)
}

// checkRobot pulls with the robot account, and wants a push with it refused in plain words.
func checkRobot(t *testing.T, s *harbortest.Server, sum registry.PushSummary, robot registry.HarborRobot) {
	t.Helper()
	auth, _ := harbortest.Login(robot.Name, robot.Secret).Resolve(nil)
	for _, it := range sum.Items {
		ref, err := name.ParseReference(it.Destination, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		img, err := remote.Image(ref, remote.WithAuth(auth), remote.WithContext(t.Context()))
		if err != nil {
			t.Fatalf("the robot account can't pull %s: %v", it.Destination, err)
		}
		checkLayers(t, img)
	}
	builder := bundletest.NewBuilder(t)
	builder.Image("a.example/x:1", bundletest.RandomImage(t, 99, 1, 1000))
	o := harborOptions(s)
	o.Auth, o.Registry = harbortest.Login(robot.Name, robot.Secret), s.Host+"/"+sum.Harbor.Projects[0].Name
	_, err := registry.Push(t.Context(), builder.Bundle().Reader, o)
	if err == nil || !strings.Contains(err.Error(), "may not push to") {
		t.Errorf("push with the robot account: %v", err)
	}
}

func TestPushHarborOneProject(t *testing.T) {
	t.Parallel()
	s := harbortest.Start(t, harbortest.Options{})
	b, hosts := twoHosts(t)
	o, project := harborOptions(s), harbortest.Unique("mirror")
	o.Registry, o.Harbor.Public = s.Host+"/"+project, true
	sum := push(t, b, o)
	if diff := cmp.Diff(harborStates(sum), map[string]string{project: registry.ProjectCreated}); diff != "" {
		t.Errorf("projects (-got +want):\n%s", diff)
	}
	if got, want := sum.Items[0].Destination, s.Host+"/"+project+"/"+hosts[0]+"/library/app:1"; got != want {
		t.Errorf("destination %s, want %s", got, want)
	}
	ref, _ := name.ParseReference(sum.Items[0].Destination, name.Insecure)
	if _, err := remote.Image(ref, remote.WithContext(t.Context())); err != nil { // nobody is logged in
		t.Errorf("the project is not public: %v", err)
	}
}

func TestPushHarborRefusesNames(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	b := bundletest.NewBuilder(t)
	b.Image("xn--bcher-kva.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	b.Image("a.example/dropped:1", bundletest.RandomImage(t, 2, 1, 1000))
	o := harborOptions(s)
	o.Rename = []registry.Rename{{From: "a.example", To: ""}}
	_, err := registry.Push(t.Context(), b.Bundle().Reader, o)
	for _, want := range []string{
		"nothing was pushed", `"xn--bcher-kva.example" is not a valid project name`,
		`"dropped" has no project`, "--rename",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	for _, r := range s.Requests() {
		if !strings.HasPrefix(r, "GET ") {
			t.Errorf("%s although nothing should be written", r)
		}
	}
}

func TestPushHarborRefusals(t *testing.T) {
	t.Parallel()
	dev := harbortest.Login(harbortest.User, harbortest.UserPassword)
	cases := map[string]struct {
		server harbortest.Options
		change func(*registry.PushOptions)
		want   []string
	}{
		"read-only": {harbortest.Options{ReadOnly: true}, nil, []string{"read-only mode", "administrator"}},
		"proxy project": {
			harbortest.Options{Projects: []harbortest.Project{{Name: "p", Proxy: true}}},
			nil,
			[]string{"project p", "proxy cache"},
		},
		"quota is small": {
			harbortest.Options{Projects: []harbortest.Project{{Name: "p", Quota: 100}}},
			nil,
			[]string{"nothing was pushed", "project p has a storage quota of 100 bytes", "raise it"},
		},
		"new quota is small": {
			harbortest.Options{},
			func(o *registry.PushOptions) { o.Harbor.Quota = 100 },
			[]string{"nothing was pushed", "quota of 100 bytes"},
		},
		"quota is used up": {
			harbortest.Options{Projects: []harbortest.Project{{
				Name: "p", Quota: 4000,
				Members: []string{harbortest.User}, Hidden: true,
			}}},
			func(o *registry.PushOptions) { o.Auth = dev },
			[]string{"the storage quota of project p", "is exhausted", "configured upper limit"},
		},
		"may not create": {
			harbortest.Options{},
			func(o *registry.PushOptions) { o.Auth = dev },
			[]string{"project p does not exist", "Only system admin can create project"},
		},
		"no rights": {
			harbortest.Options{Projects: []harbortest.Project{{Name: "p", Public: true}}},
			func(o *registry.PushOptions) { o.Auth = dev },
			[]string{
				`user "dev" may not push to`,
				"/p/a.example/app (UNAUTHORIZED: unauthorized to access repository: p/a.example/app, action: push): ",
			},
		},
		"wrong password": {
			harbortest.Options{Projects: []harbortest.Project{{Name: "p", Public: true}}},
			func(o *registry.PushOptions) { o.Auth = harbortest.Login(harbortest.User, "Wrong-Horse-1") },
			[]string{`rejects user "dev" (UNAUTHORIZED: unauthorized): check user and password`},
		},
		"robot without right": {
			harbortest.Options{Projects: []harbortest.Project{{Name: "p", Members: []string{harbortest.User}}}},
			func(o *registry.PushOptions) { o.Auth, o.Harbor.Robot = dev, "hosts-Of-Site" },
			[]string{"robot name"},
		},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := harbortest.Only(t, c.server)
			b := bundletest.NewBuilder(t)
			b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 2, 3000))
			o := harborOptions(s)
			o.Registry += "/p"
			if c.change != nil {
				c.change(&o)
			}
			_, err := registry.Push(t.Context(), b.Bundle().Reader, o)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v lacks %q", err, want)
				}
			}
		})
	}
}

func TestPushHarborImmutable(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{Projects: []harbortest.Project{{Name: "p", Immutable: true}}})
	o := harborOptions(s)
	o.Registry += "/p"
	for seed, want := range []string{"", "a rule of project p makes this tag of p/a.example/app immutable"} {
		b := bundletest.NewBuilder(t)
		b.Image("a.example/app:1", bundletest.RandomImage(t, int64(seed), 1, 3000))
		_, err := registry.Push(t.Context(), b.Bundle().Reader, o)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestPushHarborHiddenProject: an account that may push and not look, as robot accounts are, is not stopped by that.
func TestPushHarborHiddenProject(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{Projects: []harbortest.Project{{
		Name:    "p",
		Members: []string{harbortest.User}, Hidden: true,
	}}})
	b, _ := twoHosts(t)
	o := harborOptions(s)
	o.Registry += "/p"
	o.Auth = harbortest.Login(harbortest.User, harbortest.UserPassword)
	if diff := cmp.Diff(harborStates(push(t, b, o)), map[string]string{"p": registry.ProjectUnknown}); diff != "" {
		t.Errorf("projects (-got +want):\n%s", diff)
	}
}

// TestPushHarborQuotaIgnored: Harbor gives projects of other users than administrators its own quota and says nothing.
func TestPushHarborQuotaIgnored(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{AnyoneMay: true})
	b := bundletest.NewBuilder(t)
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	o := harborOptions(s)
	o.Auth = harbortest.Login(harbortest.User, harbortest.UserPassword)
	o.Harbor.Quota, o.Harbor.Robot = 1<<30, "hosts"
	sum := push(t, b.Bundle(), o)
	if len(sum.Warnings) != 1 || !strings.Contains(sum.Warnings[0], "has no storage quota, and ") {
		t.Errorf("warnings %q", sum.Warnings)
	}
	if sum.Harbor.Robot.Name != "robot$a.example+hosts" { // of the project: the other kind is for administrators
		t.Errorf("robot %q", sum.Harbor.Robot.Name)
	}
	checkRobot(t, s, sum, *sum.Harbor.Robot)
	if sum = push(t, b.Bundle(), o); sum.Harbor.Robot.Name != "robot$a.example+hosts" || sum.Harbor.Robot.Secret != "" {
		t.Errorf("second robot %q", sum.Harbor.Robot.Name)
	}
}

// TestPushHarborSomebodyElseCreates: two pushes at once want the same project.
func TestPushHarborSomebodyElseCreates(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	b := bundletest.NewBuilder(t)
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	o := harborOptions(s)
	o.Transport = before(func(r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/projects") {
			s.AddProject(harbortest.Project{Name: "a.example"})
		}
	})
	sum := push(t, b.Bundle(), o)
	if diff := cmp.Diff(harborStates(sum), map[string]string{"a.example": registry.ProjectExists}); diff != "" ||
		sum.ItemsPushed != 1 {
		t.Errorf("%+v (-got +want):\n%s", sum, diff)
	}
}

// before is a transport that does something before each request.
type before func(*http.Request)

func (b before) RoundTrip(r *http.Request) (*http.Response, error) {
	b(r)
	return http.DefaultTransport.RoundTrip(r)
}

// TestPushHarborAbsentProjectWithoutAPI: where nobody asked for projects to be made, the push says what is missing.
func TestPushHarborAbsentProjectWithoutAPI(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	b := bundletest.NewBuilder(t)
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	o := harborOptions(s)
	o.Harbor = nil
	_, err := registry.Push(t.Context(), b.Bundle().Reader, o)
	if err == nil || !strings.Contains(err.Error(), "project a.example does not exist at "+s.Host) {
		t.Errorf("got %v", err)
	}
	if slices.ContainsFunc(s.Requests(), func(r string) bool { return strings.Contains(r, "/api/") }) {
		t.Error("the API was asked")
	}
}

func TestPushRobotElsewhere(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	o := options(s)
	o.Harbor = &registry.HarborOptions{Robot: "hosts"}
	_, err := registry.Push(t.Context(), bundletest.New(t).Reader, o)
	if err == nil || !strings.Contains(err.Error(), "is not Harbor") || s.Count("PUT", "") != 0 {
		t.Errorf("got %v", err)
	}
	o.Harbor.Robot = ""
	if sum := push(t, bundletest.New(t), o); sum.Harbor != nil {
		t.Errorf("%+v", sum.Harbor)
	}
}
