package events

import (
	"cmp"
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
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/internal/outward"
)

const (
	// callbackTries are made, with pauses that double from callbackPause: two minutes of pauses.
	callbackTries = 8
	callbackPause = time.Second
	// callbackTimeout is for each try.
	callbackTimeout = 30 * time.Second
	callbackAckWait = 2 * callbackTimeout
	// callbacksAtOnce bounds all callbacks being sent, callbacksOfTenant the callbacks of one
	// tenant, callbacksOfReceiver the callbacks of one tenant to one host. A receiver that hangs
	// occupies its slots for callbackTimeout each time.
	callbacksAtOnce     = 64
	callbacksOfTenant   = 16
	callbacksOfReceiver = 8
	// callbacksHeld bounds a tenant's callbacks in memory; most of them wait for their receiver.
	callbacksHeld = 64
)

func (c *Callbacks) check() error {
	if (len(c.Hosts) > 0 || len(c.Networks) > 0) && len(c.Secret) < 16 {
		return errors.New("callbacks: configure a secret of at least 16 bytes, for signatures")
	}
	return nil
}

// parseCallback parses a callback URL, and makes it fit for a request line: it drops the fragment
// and percent-encodes characters that RFC 3986 forbids in a query, as browsers do.
func parseCallback(raw string) (*url.URL, error) {
	if i := strings.IndexFunc(raw, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return nil, refuse(ErrBadEvent, "callback URL %q: character %d is a control character", raw, i+1)
	}
	u, err := url.Parse(raw)
	port, perr := uint64(0), error(nil)
	if err == nil && u.Port() != "" {
		port, perr = strconv.ParseUint(u.Port(), 10, 16)
	}
	switch {
	case len(raw) > maxCallback:
		return nil, refuse(ErrBadEvent, "callback URL: %d bytes, the limit is %d", len(raw), maxCallback)
	case err != nil || u.Host == "" || u.Hostname() == "":
		return nil, refuse(ErrBadEvent, "callback URL %q: write a URL like https://hooks.example.org/done", raw)
	case perr != nil || u.Port() != "" && port == 0:
		return nil, refuse(ErrBadEvent, "callback URL %q: port %s is not between 1 and 65535", raw, u.Port())
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r >= 0x80 }):
		return nil, refuse(ErrBadEvent, "callback URL %q: write the host's name in ASCII (xn--…)", raw)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse(ErrBadEvent, "callback URL %q: the scheme %q is neither http nor https", raw, u.Scheme)
	case u.User != nil:
		return nil, refuse(ErrBadEvent, "callback URL: contains a user; receivers check the signature of callbacks instead")
	}
	u.Fragment, u.RawFragment = "", ""
	u.RawQuery = encodeQuery(u.RawQuery)
	return u, nil
}

const maxCallback = 2048

func encodeQuery(query string) string {
	var b strings.Builder
	for i := range len(query) {
		c := query[i]
		broken := c == '%' && (i+2 >= len(query) || !isHex(query[i+1]) || !isHex(query[i+2]))
		if broken || c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// allow returns an error if results may not be sent to u.
func (c *Callbacks) allow(u *url.URL) error {
	if len(c.Hosts) == 0 && len(c.Networks) == 0 {
		return errors.New("no callbacks are allowed: list hosts under events.callbacks in the engine's configuration")
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		if !c.rule("").Allows(a) {
			return fmt.Errorf("%s is not in events.callbacks.networks", a)
		}
		return nil
	}
	if !c.named(host) && len(c.Networks) == 0 { // otherwise the addresses decide, on connection
		return fmt.Errorf("%s is not in events.callbacks.hosts", host)
	}
	return nil
}

// named reports whether Hosts contains the host.
func (c *Callbacks) named(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc(c.Hosts, func(h string) bool {
		if below, ok := strings.CutPrefix(h, "*"); ok {
			return strings.HasSuffix(host, below) && len(host) > len(below)
		}
		return h == host
	})
}

// rule returns the addresses allowed for the host: public ones only if Hosts contains the host.
func (c *Callbacks) rule(host string) *outward.Rule {
	return &outward.Rule{Networks: c.Networks, Only: host == "" || !c.named(host), Setting: "events.callbacks.networks"}
}

// client returns a client that checks the address of each connection and follows no redirects.
func (c *Callbacks) client() *http.Client {
	return &http.Client{
		Timeout:       cmp.Or(c.timeout, callbackTimeout),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				return c.rule(host).DialContext(ctx, network, address)
			},
			MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		},
	}
}

// order writes to disk that a result is to be sent. Ordering a result twice sends it once.
func (s *Service) order(result *message) error {
	order := message{Entry: result.Entry, callback: result.callback}
	out, err := order.encode(kindOrders.subject(result.Tenant, result.Function, result.ID))
	if err != nil {
		return err
	}
	out.Header[nats.MsgIdHdr] = []string{result.ID + "." + strconv.FormatUint(result.seq, 10)} // a replayed event has a later sequence, so another id
	if _, _, err = s.streams.put(s.live, kindOrders, result.Tenant, out); err != nil {
		return err
	}
	s.sendFrom(kindOrders.of(result.Tenant))
	return nil
}

// sender sends the results that one stream orders. Each tenant waits only for its own receivers.
type sender struct {
	s      *Service
	stream string
	client *http.Client
	held   chan struct{} // a slot for each order in memory
	slots  chan struct{} // a slot for each callback being sent

	mu        sync.Mutex
	receivers map[string]*receiver // by host, for the orders in memory
}

type receiver struct {
	orders int
	slots  chan struct{}
}

// sendFrom starts a sender for a stream, or tells the running sender of a new order.
func (s *Service) sendFrom(stream string) {
	if len(s.cfg.Callbacks.Secret) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, runs := s.sending[stream]; runs || s.closed {
		s.sending[stream] = true
		return
	}
	s.sending[stream] = false
	c := &sender{
		s: s, stream: stream, client: s.cfg.Callbacks.client(), receivers: map[string]*receiver{},
		held: make(chan struct{}, callbacksHeld), slots: make(chan struct{}, callbacksOfTenant),
	}
	s.tasks.Go(c.run)
}

// run sends results until no order has arrived for idleQueue.
func (c *sender) run() {
	defer c.client.CloseIdleConnections()
	var cons jetstream.Consumer
	ctx := c.s.live
	for ctx.Err() == nil {
		if cons == nil {
			var err error
			if cons, err = c.consumer(ctx); err != nil {
				c.s.cfg.Log.Debug("events: consumer of callbacks", "stream", c.stream, "error", err)
				if len(c.held) == 0 && c.leave() { // scan starts a sender again if orders are left
					return
				}
				sleep(ctx, retryStream)
				continue
			}
		}
		select {
		case c.held <- struct{}{}:
		case <-ctx.Done():
			return
		}
		msg, err := next(ctx, cons)
		if msg != nil {
			c.s.tasks.Go(func() {
				defer func() { <-c.held }()
				c.send(msg)
			})
			continue
		}
		<-c.held
		switch {
		case err != nil:
			cons = nil
			sleep(ctx, gather)
		case len(c.held) == 0 && c.leave():
			return
		}
	}
}

// consumer finds or makes the durable consumer. MaxAckPending is unlimited, because orders that
// wait for another try count as pending.
func (c *sender) consumer(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.Patience)
	defer cancel()
	return c.s.streams.consumer(ctx, c.stream, jetstream.ConsumerConfig{
		Durable: "send", AckPolicy: jetstream.AckExplicitPolicy, AckWait: callbackAckWait, MaxDeliver: -1, MaxAckPending: -1,
	})
}

// next waits for an order; nil if none has arrived for idleQueue.
func next(ctx context.Context, cons jetstream.Consumer) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, idleQueue)
	defer cancel()
	batch, err := cons.Fetch(1, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		return msg, nil
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, jetstream.ErrNoMessages) && ctx.Err() == nil {
		return nil, err
	}
	return nil, nil
}

// leave ends the sender and returns true, unless a result was ordered meanwhile.
func (c *sender) leave() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.sending[c.stream] {
		c.s.sending[c.stream] = false
		return false
	}
	delete(c.s.sending, c.stream)
	return true
}

// send makes one try at an order, once the slots allow it.
func (c *sender) send(msg jetstream.Msg) {
	order, err := decode(msg.Subject(), msg.Headers(), nil)
	meta, merr := msg.Metadata()
	if err = errors.Join(err, merr); err != nil {
		c.s.cfg.Log.Error("events: callback not understood", "subject", msg.Subject(), "error", err)
		_ = msg.Term() // fails only with the connection
		return
	}
	key := keyOfMessage(meta)
	if !c.s.deliveries.take(key, msg) {
		return
	}
	stop := keepDelivered(msg, callbackAckWait/3)
	v := c.inTurn(msg, meta, key, order)
	stop()
	c.s.deliveries.release(key, msg, v)
}

func (c *sender) inTurn(msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey, order *message) verdict {
	host := ""
	if u, err := url.Parse(order.callback); err == nil {
		host = u.Host
	}
	r := c.receiver(host)
	defer c.drop(host)
	// The narrowest limit first: an order that waits for its receiver must not hold a wider slot.
	for _, slots := range []chan struct{}{r.slots, c.slots, c.s.callbacks} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-c.s.live.Done():
			return verdict{again: true}
		}
	}
	return c.s.sendOne(c.client, msg, meta, key, order)
}

func (c *sender) receiver(host string) *receiver {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.receivers[host]
	if r == nil {
		r = &receiver{slots: make(chan struct{}, callbacksOfReceiver)}
		c.receivers[host] = r
	}
	r.orders++
	return r
}

func (c *sender) drop(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.receivers[host]; r.orders > 1 {
		r.orders--
	} else {
		delete(c.receivers, host)
	}
}

// sendOne makes one try; a failed order comes again. A try broken off by the engine's end counts.
func (s *Service) sendOne(client *http.Client, msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey, order *message) verdict {
	n, _, err := s.deliveries.count(key, meta)
	if err != nil {
		s.cfg.Log.Error("events: callback not begun", "id", order.ID, "function", order.Function, "error", err)
		s.deliveries.wait(key, n-1)
		return verdict{again: true, after: retryStream}
	}
	final := n > callbackTries
	if final {
		n--
		err = fmt.Errorf("the engine ended during try %d", n)
	} else {
		final, err = s.post(client, order)
	}
	switch {
	case err == nil:
		s.metrics.callbacks.WithLabelValues("done").Inc()
	case s.live.Err() != nil:
		s.deliveries.wait(key, n-1)
		return verdict{again: true}
	case !final && n < callbackTries:
		s.deliveries.wait(key, n)
		return verdict{again: true, after: callbackPause << (n - 1)}
	default:
		s.metrics.callbacks.WithLabelValues("failed").Inc()
		s.cfg.Log.Warn("events: callback given up", "id", order.ID, "function", order.Function, "tries", n, "error", err)
	}
	_ = msg.Ack() // without an acknowledgement the result is sent again
	s.deliveries.end(key)
	return verdict{}
}

// post sends a result. final means that another try is no use.
func (s *Service) post(client *http.Client, order *message) (final bool, err error) {
	to, err := parseCallback(order.callback) // an earlier engine may have accepted the URL
	if err == nil {
		err = s.cfg.Callbacks.allow(to) // the configuration may have changed
	}
	if err != nil {
		return true, err
	}
	m, err := s.streams.lastEnd(s.live, kindResults, order.Tenant, order.Function, order.ID)
	if err != nil {
		return errors.Is(err, ErrNotFound), fmt.Errorf("result of the event: %w", err)
	}
	d := s.details(m.Entry, m)
	now := strconv.FormatInt(time.Now().Unix(), 10)
	size, signature, err := sign(s.cfg.Callbacks.Secret, now, d)
	if err != nil {
		return true, err
	}
	r, err := http.NewRequestWithContext(s.live, http.MethodPost, to.String(), http.NoBody)
	if err != nil {
		return true, err
	}
	if size > 0 { // read the body again rather than hold it in memory
		r.ContentLength, r.GetBody = size, d.Body
		if r.Body, err = d.Body(); err != nil {
			return true, err
		}
	}
	for _, f := range m.request.Headers {
		if name := textproto.CanonicalMIMEHeaderKey(f[0]); name == "Content-Type" || name == "Content-Encoding" {
			r.Header.Set(name, f[1])
		}
	}
	for _, f := range [][2]string{
		{"User-Agent", "fre"},
		{"X-Call-Id", m.ID},
		{"X-Function-Name", m.Function},
		{"X-Function-Status", strconv.Itoa(m.Status)},
		{"X-Fre-Event-State", string(m.State)},
		{"X-Fre-Event-Attempts", strconv.Itoa(m.Attempts)},
		{"X-Fre-Timestamp", now},
		{"X-Fre-Signature-256", "sha256=" + signature},
	} {
		r.Header.Set(f[0], f[1])
	}
	if m.Error != "" { // why the event is dead
		r.Header.Set("X-Fre-Event-Error", m.Error)
	}
	resp, err := client.Do(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be reused
	if resp.StatusCode/100 == 2 {
		return false, nil
	}
	final = resp.StatusCode/100 != 5 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout
	return final, fmt.Errorf("the receiver answered %d", resp.StatusCode)
}

// sign returns the body's size and the hexadecimal HMAC-SHA256 of TIME.ID.BODY.
func sign(secret []byte, now string, d *Details) (size int64, signature string, err error) {
	body, err := d.Body()
	if err != nil {
		return 0, "", err
	}
	defer body.Close()
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(now + "." + d.ID + "."))
	if size, err = io.Copy(h, body); err != nil {
		return 0, "", err
	}
	return size, hex.EncodeToString(h.Sum(nil)), nil
}
