package server_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

func audited(t *testing.T, c *client.Client, o client.AuditOptions) (out []string) {
	t.Helper()
	err := c.Audit(t.Context(), o, func(e api.AuditEntry) error {
		if e.Time.IsZero() || e.Client != "127.0.0.1" {
			t.Errorf("entry %+v", e)
		}
		out = append(out, strings.Join([]string{e.Tenant, e.Action, e.On, e.Result}, " "))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// An admin reads the audit log; a tenant's admin sees the entries of its own tenant only.
func TestAuditRead(t *testing.T) {
	r := serveRemote(t)
	ctx := t.Context()
	root, acme := r.client(access.AllTenants, access.Admin), r.client("acme", access.Admin)
	begun := time.Now()
	wantStatus(t, "its own secret", acme.Secrets().Put(ctx, "acme", "key", []byte("x"), client.PutOptions{}), 0)
	wantStatus(t, "the other's secret", r.client("other", access.Admin).Secrets().Put(ctx, "other", "key", []byte("x"), client.PutOptions{}), 0)
	wantStatus(t, "with too little", r.client("acme", access.Read).Functions().Remove(ctx, "a.acme"), 403)
	_, err := r.with("fre_0000000000000000_" + strings.Repeat("A", 43)).Functions().List(ctx)
	wantStatus(t, "made up", err, 401)

	all := client.AuditOptions{Tail: access.MaxAuditTail}
	const put, remove = "POST /v1/tenants/{tenant}/secrets/{secret} key done", "DELETE /v1/functions/{name} a.acme refused"
	mine := []string{"acme " + put, "acme " + remove}
	if got := audited(t, acme, all); !slices.Equal(got, mine) {
		t.Errorf("acme is shown %q, want %q", got, mine)
	}
	got := audited(t, root, all)
	for _, want := range append(mine, "* POST /v1/functions a done", "* POST /v1/functions b done", "other "+put, " authenticate  refused") {
		if !slices.Contains(got, want) {
			t.Errorf("root is not shown %q, but %q", want, got)
		}
	}
	for name, test := range map[string]struct {
		o    client.AuditOptions
		want []string
	}{
		"tenant":  {client.AuditOptions{Tail: 9, Tenant: "other"}, []string{"other " + put}},
		"action":  {client.AuditOptions{Tail: 9, Actions: []string{"authenticate", "DELETE"}}, []string{"acme " + remove, " authenticate  refused"}},
		"tail":    {client.AuditOptions{Tail: 1, Tenant: "acme"}, mine[1:]},
		"since":   {client.AuditOptions{Tail: 9, Since: begun.Add(time.Hour)}, nil},
		"since 2": {client.AuditOptions{Tail: 9, Since: begun.Add(-time.Second), Tenant: "acme"}, mine},
		"none":    {client.AuditOptions{}, nil},
	} {
		if got := audited(t, root, test.o); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}

	ignore := func(api.AuditEntry) error { return nil }
	for what, scope := range map[string]access.Scope{"read": access.Read, "deploy": access.Deploy, "invoke": access.Invoke} {
		wantStatus(t, "the scope "+what, r.client("acme", scope).Audit(ctx, all, ignore), 403)
	}
	wantStatus(t, "another's", acme.Audit(ctx, client.AuditOptions{Tenant: "other"}, ignore), 403)
	wantStatus(t, "root's", acme.Audit(ctx, client.AuditOptions{Tenant: access.AllTenants}, ignore), 403)
	wantStatus(t, "too many", acme.Audit(ctx, client.AuditOptions{Tail: access.MaxAuditTail + 1}, ignore), 400)
	wantStatus(t, "fewer than none", acme.Audit(ctx, client.AuditOptions{Tail: -1}, ignore), 400)
}

// A tenant's admin follows the entries of its own tenant, and gets an error when it reads too
// slowly.
func TestAuditFollow(t *testing.T) {
	r := serveRemote(t)
	acme := r.client("acme", access.Admin)
	record := func(tenant, on string) {
		r.access.Record(access.Entry{Who: "test", Tenant: tenant, Action: "test", On: on, Result: access.Refused})
	}
	record("acme", "first")
	heard, ended := make(chan string), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- acme.Audit(ctx, client.AuditOptions{Tail: 1, Follow: true}, func(e api.AuditEntry) error {
			select {
			case heard <- e.On:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	for _, want := range []string{"first", "second", "third"} {
		if got := <-heard; got != want {
			t.Fatalf("heard of %q, want %q", got, want)
		}
		record("other", "not told")
		record("acme", map[string]string{"first": "second", "second": "third", "third": "last"}[want])
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended by its client: %v", err)
	}

	// The client stops reading: entries beyond the connection's buffers fill the backlog, and no
	// writer of entries waits.
	begun, release := make(chan struct{}), make(chan struct{})
	told := 0
	go func() {
		ended <- acme.Audit(t.Context(), client.AuditOptions{Tail: 1, Follow: true}, func(api.AuditEntry) error {
			if told++; told == 1 {
				close(begun)
				<-release
			}
			return nil
		})
	}()
	<-begun
	recorded := 0
	for long := strings.Repeat("x", 1000); recorded < 20_000; recorded++ { // 20 MB, more than the sockets buffer
		record("acme", long)
	}
	close(release)
	var e *api.Error
	if err := <-ended; !errors.As(err, &e) || e.Code != api.CodeGone {
		t.Errorf("a slow follower: %v, want the code gone", err)
	}
	if told >= recorded {
		t.Errorf("it was told of all %d", told)
	}
}
