package events

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	streamCallbacks = "FRE_CALLBACKS"
	// callbackTries are made with pauses that double from callbackPause on: four minutes.
	callbackTries = 8
	callbackPause = time.Second
	// callbackTimeout is for one of them.
	callbackTimeout = 30 * time.Second
	callbacksAtOnce = 16
)

// callbackOff are the ranges that are no public addresses, beside those netip knows.
var callbackOff = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"),
}

func (c *Callbacks) check() error {
	if (len(c.Hosts) > 0 || len(c.Networks) > 0) && len(c.Secret) < 16 {
		return errors.New("callbacks: a secret of at least 16 bytes is needed, by which receivers know them")
	}
	return nil
}

// allow says why results may not be sent to a URL.
func (c *Callbacks) allow(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case len(c.Hosts) == 0 && len(c.Networks) == 0:
		return errors.New("none are: events.callbacks in the engine's configuration says where to")
	case err != nil || u.Host == "" || len(raw) > 2048:
		return errors.New("it is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q is neither http nor https", u.Scheme)
	case u.User != nil:
		return errors.New("it holds a user")
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		return c.reachable("", a)
	}
	if !c.named(host) && len(c.Networks) == 0 { // else its addresses decide
		return fmt.Errorf("%s is not in events.callbacks.hosts", host)
	}
	return nil
}

// named says whether the host's name is allowed.
func (c *Callbacks) named(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc(c.Hosts, func(h string) bool {
		if below, ok := strings.CutPrefix(h, "*"); ok {
			return strings.HasSuffix(host, below) && len(host) > len(below)
		}
		return h == host
	})
}

// reachable says why an address may not be connected to, for that host.
func (c *Callbacks) reachable(host string, a netip.Addr) error {
	a = a.Unmap().WithZone("")
	within := func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	public := a.IsGlobalUnicast() && !a.IsPrivate() && !within(callbackOff)
	if within(c.Networks) || public && host != "" && c.named(host) {
		return nil
	}
	return fmt.Errorf("%s is not in events.callbacks.networks", a)
}

// client connects only where it may, whatever names lead to by then, and follows nothing.
func (c *Callbacks) client() *http.Client {
	return &http.Client{
		Timeout:       callbackTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				d := net.Dialer{Timeout: 10 * time.Second, ControlContext: func(_ context.Context, _, to string, _ syscall.RawConn) error {
					at, err := netip.ParseAddrPort(to)
					if err != nil {
						return err
					}
					return c.reachable(host, at.Addr())
				}}
				return d.DialContext(ctx, network, address)
			},
			MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		},
	}
}

// order has a result sent, durably, and once though it is asked for again.
func (s *Service) order(result *message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.live), commitTimeout)
	defer cancel()
	s.mu.Lock()
	sending := s.sending
	s.mu.Unlock()
	if !sending {
		if err := s.startCallbacks(ctx); err != nil {
			return err
		}
	}
	order := message{Entry: result.Entry, callback: result.callback}
	out, err := order.encode(endSubject("callbacks", result.Tenant, result.Function, result.ID))
	if err != nil {
		return err
	}
	out.Header[nats.MsgIdHdr] = []string{result.ID + "." + strconv.FormatUint(result.seq, 10)} // one that is replayed is further on in its queue
	_, _, err = s.orders.put(out)
	return err
}

// startCallbacks begins to send what is ordered.
func (s *Service) startCallbacks(ctx context.Context) error {
	s.making.Lock()
	defer s.making.Unlock()
	s.mu.Lock()
	sending := s.sending
	s.mu.Unlock()
	if sending {
		return nil
	}
	_, err := s.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: streamCallbacks, Subjects: []string{"fre.callbacks.*.*.*"}, Description: "FRE: results that are to be sent", Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, Replicas: s.cfg.Replicas, MaxMsgs: s.cfg.MaxQueue, AllowAtomicPublish: true,
	})
	if err != nil {
		return fault(err)
	}
	cons, err := s.js.CreateOrUpdateConsumer(ctx, streamCallbacks, jetstream.ConsumerConfig{
		Durable: "send", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * callbackTimeout, MaxDeliver: -1, MaxAckPending: callbacksAtOnce,
	})
	if err != nil {
		return fault(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending || s.closed {
		return nil
	}
	s.sending = true
	client := s.cfg.Callbacks.client()
	s.tasks.Go(func() {
		defer client.CloseIdleConnections()
		s.send(cons, client)
	})
	return nil
}

func (s *Service) send(cons jetstream.Consumer, client *http.Client) {
	at := make(chan struct{}, callbacksAtOnce)
	for s.live.Err() == nil {
		ctx, cancel := context.WithTimeout(s.live, idleQueue)
		batch, err := cons.Fetch(1, jetstream.FetchContext(ctx))
		if err != nil {
			cancel()
			sleep(s.live, retryStream)
			continue
		}
		for msg := range batch.Messages() {
			at <- struct{}{}
			s.tasks.Go(func() {
				defer func() { <-at }()
				s.sendOne(client, msg)
			})
		}
		cancel()
	}
}

// sendOne tries once; what fails comes again.
func (s *Service) sendOne(client *http.Client, msg jetstream.Msg) {
	order, err := decode(msg.Subject(), msg.Headers(), nil)
	meta, merr := msg.Metadata()
	if err = errors.Join(err, merr); err != nil {
		s.cfg.Log.Error("events: callback not understood", "subject", msg.Subject(), "error", err)
		_ = msg.Term() // fails with the connection
		return
	}
	final, err := s.post(client, order)
	switch {
	case err == nil:
		s.metrics.callbacks.WithLabelValues("done").Inc()
	case s.live.Err() != nil:
		_ = msg.Nak() // likewise
		return
	case !final && meta.NumDelivered < callbackTries:
		_ = msg.NakWithDelay(callbackPause << (meta.NumDelivered - 1)) // likewise
		return
	default:
		s.metrics.callbacks.WithLabelValues("failed").Inc()
		s.cfg.Log.Warn("events: callback given up", "id", order.ID, "function", order.Function, "tries", meta.NumDelivered, "error", err)
	}
	_ = msg.Ack() // else it is sent once more
}

// post sends a result; final says that trying again is no use.
func (s *Service) post(client *http.Client, order *message) (final bool, err error) {
	if err := s.cfg.Callbacks.allow(order.callback); err != nil { // the configuration may have changed
		return true, err
	}
	m, err := s.end1(s.live, kindResults, order.Tenant, order.Function, order.ID)
	if err != nil {
		return errors.Is(err, ErrNotFound), fmt.Errorf("its result: %w", err)
	}
	body, err := s.details(m.Entry, m).Body()
	if err != nil {
		return true, err
	}
	defer body.Close()
	sent, err := io.ReadAll(body)
	if err != nil {
		return true, err
	}
	r, err := http.NewRequestWithContext(s.live, http.MethodPost, order.callback, bytesReader(sent))
	if err != nil {
		return true, err
	}
	for _, f := range m.fields {
		if name := textproto.CanonicalMIMEHeaderKey(f[0]); name == "Content-Type" || name == "Content-Encoding" {
			r.Header.Set(name, f[1])
		}
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	for _, f := range [][2]string{
		{"User-Agent", "fre"},
		{"X-Call-Id", m.ID},
		{"X-Function-Name", m.Function},
		{"X-Function-Status", strconv.Itoa(m.Status)},
		{"X-Fre-Event-State", string(m.State)},
		{"X-Fre-Timestamp", now},
		{"X-Fre-Signature-256", "sha256=" + callbackSignature(s.cfg.Callbacks.Secret, now, m.ID, sent)},
	} {
		r.Header.Set(f[0], f[1])
	}
	resp, err := client.Do(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // for the connection's sake
	if resp.StatusCode/100 == 2 {
		return false, nil
	}
	final = resp.StatusCode/100 != 5 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout
	return final, fmt.Errorf("the receiver answered %d", resp.StatusCode)
}

// callbackSignature is over TIME.ID.BODY, in hexadecimal digits.
func callbackSignature(secret []byte, now, id string, body []byte) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(now + "." + id + "."))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}
