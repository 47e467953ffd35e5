package incluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/deploy/incluster/inpod"
	"github.com/kkbundle/kkbundle/internal/pki"
)

// Keys of the Secret.
const (
	keyPush      = "push-password"
	keyPull      = "pull-password"
	keyPushers   = "pushers"
	keyPullers   = "pullers"
	keyAuthority = "ca.crt"
	keyCert      = corev1.TLSCertKey
	keyKey       = corev1.TLSPrivateKeyKey

	userPush = "kkbundle-push"
	userPull = "kkbundle-pull"

	renewal = 365 * 24 * time.Hour // left of a certificate that a run replaces
)

// secret is the data of the registry's Secret: one object, so that it is never half there. The registry's pod alone
// refers to it.
type secret map[string][]byte

func (s secret) push() Login { return Login{userPush, string(s[keyPush])} }
func (s secret) pull() Login { return Login{userPull, string(s[keyPull])} }

// sum changes with the data, so that pods start again with changed data.
func (s secret) sum() string {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(h, "%s %d\n%s", k, len(s[k]), s[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// stored returns the Secret, or an earlier release's, or nil.
func (w *work) stored(ctx context.Context) (*corev1.Secret, error) {
	for _, one := range []string{secretName, earlierSecret} {
		have, err := w.typed.CoreV1().Secrets(w.Namespace).Get(ctx, one, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return have, err
		}
	}
	return nil, nil
}

// secrets returns the Secret's data. What is missing is made, and a certificate that ends within a year is replaced.
// Every kubelet could read an earlier release's: of that one only the login stays with which all nodes pull.
func (w *work) secrets(ctx context.Context) (secret, error) {
	api := w.typed.CoreV1().Secrets(w.Namespace)
	have, err := w.stored(ctx)
	if err != nil {
		return nil, err
	}
	exists, data := have != nil && have.Name == secretName, map[string][]byte(nil)
	switch {
	case exists:
		data = have.Data
	case have != nil:
		data = map[string][]byte{keyPull: have.Data[keyPull], keyPullers: have.Data[keyPullers]}
	}
	s, changed, err := complete(data, time.Now())
	if err != nil || !changed {
		return s, err
	}
	w.changed++
	o := &corev1.Secret{ObjectMeta: meta(w.Namespace, secretName, "registry"), Data: s}
	if !exists {
		// a run at the same time made it first: an error, and this run is repeated
		_, err = api.Create(ctx, o, metav1.CreateOptions{})
		return s, err
	}
	o.ResourceVersion = have.ResourceVersion
	_, err = api.Update(ctx, o, metav1.UpdateOptions{})
	return s, err
}

// complete returns data with all keys, and reports whether it had to change.
func complete(data map[string][]byte, now time.Time) (secret, bool, error) {
	s, changed := secret(maps.Clone(data)), false
	if s == nil {
		s = secret{}
	}
	for _, l := range []struct{ user, password, file string }{
		{userPush, keyPush, keyPushers},
		{userPull, keyPull, keyPullers},
	} {
		if len(s[l.password]) > 0 && bytes.HasPrefix(s[l.file], []byte(l.user+":")) {
			continue
		}
		password := rand.Text()
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
		if err != nil {
			return nil, false, fmt.Errorf("password of %s: %w", l.user, err)
		}
		s[l.password], s[l.file], changed = []byte(password), []byte(l.user+":"+string(hash)+"\n"), true
	}
	if lasts(s, now) {
		return s, changed, nil
	}
	authority, pair, err := pki.NewAuthority("kkbundle registry", now)
	if err != nil {
		return nil, false, fmt.Errorf("certificate of the registry: %w", err)
	}
	server, err := authority.Issue(pki.ParseNames([]string{inpod.ServerName}), now, pki.Life)
	if err != nil {
		return nil, false, fmt.Errorf("certificate of the registry: %w", err)
	}
	s[keyAuthority], s[keyCert], s[keyKey] = pair.Cert, server.Cert, server.Key
	return s, true, nil
}

// lasts reports whether the certificate is there and valid for long enough.
func lasts(s secret, now time.Time) bool {
	c, err := pki.ParseCertificate(s[keyCert])
	return err == nil && len(s[keyKey]) > 0 && len(s[keyAuthority]) > 0 && now.Add(renewal).Before(c.NotAfter)
}
