package harbor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Healthy checks the health of all of Harbor's components; the error names the unhealthy ones.
func (c *Client) Healthy(ctx context.Context) error {
	var health struct {
		Status     string `json:"status"`
		Components []struct {
			Name   string `json:"name"`
			Status string `json:"status"`
		} `json:"components"`
	}
	const healthy = "healthy"
	if err := c.do(ctx, call{op: "look at Harbor's health", method: http.MethodGet, path: "/health", anonymous: true},
		&health); err != nil {
		return err
	}
	if health.Status == healthy {
		return nil
	}
	var ill []string
	for _, part := range health.Components {
		if part.Status != healthy {
			ill = append(ill, clean(part.Name))
		}
	}
	if len(ill) == 0 {
		return errors.New("Harbor reports that it is unhealthy") //nolint:staticcheck // a name
	}
	return fmt.Errorf("Harbor is not healthy: %s", strings.Join(ill, ", ")) //nolint:staticcheck // a name
}

// CheckLogin checks user and password: ErrDenied if wrong.
func (c *Client) CheckLogin(ctx context.Context) error {
	err := c.do(ctx, call{op: "log in as " + c.Username, method: http.MethodGet, path: "/users/current"}, nil)
	if hasStatus(err, http.StatusUnauthorized, http.StatusForbidden) {
		return errors.Join(ErrDenied, err)
	}
	return err
}

// SetSecret sets the secret of the system's robot account with that name: 8 characters or more, with an upper-case and
// a lower-case letter and a digit (src/controller/robot/controller.go, IsValidSec).
func (c *Client) SetSecret(ctx context.Context, name, secret string) error {
	found, err := c.findRobot(ctx, newRobot{Name: name, Level: levelSystem})
	if err != nil {
		return err
	}
	body := struct {
		Secret string `json:"secret"`
	}{secret}
	path := "/robots/" + strconv.FormatInt(found.ID, 10)
	return c.do(ctx, call{
		op: "set the secret of robot account " + name, method: http.MethodPatch, path: path,
		body: body,
	}, nil)
}
