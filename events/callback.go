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
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/internal/outward"
)

const (
	// callbackTries are made with pauses that double from callbackPause on: four minutes.
	callbackTries = 8
	callbackPause = time.Second
	// callbackTimeout is for one of them.
	callbackTimeout = 30 * time.Second
	callbackAckWait = 2 * callbackTimeout
	// callbacksAtOnce are sent at a time, and so many of those of one tenant, and by that to one
	// receiver: one that hangs keeps its places for callbackTimeout each time.
	callbacksAtOnce     = 64
	callbacksOfTenant   = 16
	callbacksOfReceiver = 8
	// callbacksHeld bounds how many of a tenant's are in memory, most of them waiting for their
	// receiver.
	callbacksHeld = 64
)

func (c *Callbacks) check() error {
	if (len(c.Hosts) > 0 || len(c.Networks) > 0) && len(c.Secret) < 16 {
		return errors.New("callbacks: a secret of at least 16 bytes is needed, by which receivers know them")
	}
	return nil
}

// parseCallback reads a URL that results are sent to, and returns it as a request line can hold it:
// what RFC 3986 leaves no place for in a query is percent-encoded, as browsers do it.
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
		return nil, refuse(ErrBadEvent, "callback URL: it has %d bytes, the limit is %d", len(raw), maxCallback)
	case err != nil || u.Host == "" || u.Hostname() == "":
		return nil, refuse(ErrBadEvent, "callback URL %q: write one such as https://hooks.example.org/done", raw)
	case perr != nil || u.Port() != "" && port == 0:
		return nil, refuse(ErrBadEvent, "callback URL %q: port %s is not between 1 and 65535", raw, u.Port())
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r >= 0x80 }):
		return nil, refuse(ErrBadEvent, "callback URL %q: write the host's name in ASCII (xn--…)", raw)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse(ErrBadEvent, "callback URL %q: the scheme %q is neither http nor https", raw, u.Scheme)
	case u.User != nil:
		return nil, refuse(ErrBadEvent, "callback URL: it holds a user; callbacks are known by their signature")
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

// allow says why results may not be sent to a URL.
func (c *Callbacks) allow(u *url.URL) error {
	if len(c.Hosts) == 0 && len(c.Networks) == 0 {
		return errors.New("none are: events.callbacks in the engine's configuration says where to")
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		if !c.rule("").Allows(a) {
			return fmt.Errorf("%s is not in events.callbacks.networks", a)
		}
		return nil
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

// rule is what may be connected to for that host: public addresses only where it is named.
func (c *Callbacks) rule(host string) *outward.Rule {
	return &outward.Rule{Networks: c.Networks, Only: host == "" || !c.named(host), Setting: "events.callbacks.networks"}
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
				return c.rule(host).DialContext(ctx, network, address)
			},
			MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		},
	}
}

// order has a result sent, durably, and once though it is asked for again.
func (s *Service) order(result *message) error {
	order := message{Entry: result.Entry, callback: result.callback}
	out, err := order.encode(kindOrders.subject(result.Tenant, result.Function, result.ID))
	if err != nil {
		return err
	}
	out.Header[nats.MsgIdHdr] = []string{result.ID + "." + strconv.FormatUint(result.seq, 10)} // one that is replayed is further on in its queue
	if _, _, err = s.put(s.live, kindOrders, result.Tenant, out); err != nil {
		return err
	}
	s.sendFrom(kindOrders.of(result.Tenant))
	return nil
}

// sender sends what one stream orders, a tenant's: each tenant waits for its own receivers.
type sender struct {
	s      *Service
	stream string
	client *http.Client
	held   chan struct{} // a place for each order that is in memory
	places chan struct{} // and for each that is being sent

	mu        sync.Mutex
	receivers map[string]*receiver // by host, of orders that are held
}

type receiver struct {
	orders int
	places chan struct{}
}

// sendFrom begins to send what is ordered in a stream, unless that is being done.
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
		held: make(chan struct{}, callbacksHeld), places: make(chan struct{}, callbacksOfTenant),
	}
	s.tasks.Go(c.run)
}

// run sends until nothing has been ordered for a while.
func (c *sender) run() {
	defer c.client.CloseIdleConnections()
	var cons jetstream.Consumer
	ctx := c.s.live
	for ctx.Err() == nil {
		if cons == nil {
			var err error
			if cons, err = c.consumer(ctx); err != nil {
				c.s.cfg.Log.Debug("events: consumer of callbacks", "stream", c.stream, "error", err)
				if len(c.held) == 0 && c.leave() { // scan begins anew where some are left
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

// consumer makes the durable consumer, or finds it. Those that wait to be tried again count as
// pending, however many.
func (c *sender) consumer(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	c.s.making.Lock()
	defer c.s.making.Unlock()
	return c.s.js.CreateOrUpdateConsumer(ctx, c.stream, jetstream.ConsumerConfig{
		Durable: "send", AckPolicy: jetstream.AckExplicitPolicy, AckWait: callbackAckWait, MaxDeliver: -1, MaxAckPending: -1,
	})
}

// next waits for an order; nil where none has come for a while.
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

// leave ends the sender unless something was ordered meanwhile.
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

// send tries one order in its turn.
func (c *sender) send(msg jetstream.Msg) {
	order, err := decode(msg.Subject(), msg.Headers(), nil)
	meta, merr := msg.Metadata()
	if err = errors.Join(err, merr); err != nil {
		c.s.cfg.Log.Error("events: callback not understood", "subject", msg.Subject(), "error", err)
		_ = msg.Term() // fails with the connection
		return
	}
	key := keyOfMessage(meta)
	if !c.s.take(key, msg) {
		return
	}
	stop := c.s.keep(msg, callbackAckWait/3)
	v := c.inTurn(msg, meta, key, order)
	stop()
	c.s.release(key, msg, v)
}

func (c *sender) inTurn(msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey, order *message) verdict {
	host := ""
	if u, err := url.Parse(order.callback); err == nil {
		host = u.Host
	}
	r := c.receiver(host)
	defer c.drop(host)
	// The narrowest first: whoever waits for its receiver is in nobody's way.
	for _, places := range []chan struct{}{r.places, c.places, c.s.callbacks} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
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
		r = &receiver{places: make(chan struct{}, callbacksOfReceiver)}
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

// sendOne tries once; what fails comes again. A try that the engine's end has broken off counts.
func (s *Service) sendOne(client *http.Client, msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey, order *message) verdict {
	n, _, err := s.count(key, meta)
	if err != nil {
		s.cfg.Log.Error("events: callback not begun", "id", order.ID, "function", order.Function, "error", err)
		s.waits(key, n-1)
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
		s.waits(key, n-1)
		return verdict{again: true}
	case !final && n < callbackTries:
		s.waits(key, n)
		return verdict{again: true, after: callbackPause << (n - 1)}
	default:
		s.metrics.callbacks.WithLabelValues("failed").Inc()
		s.cfg.Log.Warn("events: callback given up", "id", order.ID, "function", order.Function, "tries", n, "error", err)
	}
	_ = msg.Ack() // else it is sent once more
	s.tried(key)
	return verdict{}
}

// post sends a result; final says that trying again is no use.
func (s *Service) post(client *http.Client, order *message) (final bool, err error) {
	to, err := parseCallback(order.callback) // an engine before this one may have taken it
	if err == nil {
		err = s.cfg.Callbacks.allow(to) // the configuration may have changed
	}
	if err != nil {
		return true, err
	}
	m, err := s.end1(s.live, kindResults, order.Tenant, order.Function, order.ID)
	if err != nil {
		return errors.Is(err, ErrNotFound), fmt.Errorf("its result: %w", err)
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
	if size > 0 { // it is read once more rather than held in memory
		r.ContentLength, r.GetBody = size, d.Body
		if r.Body, err = d.Body(); err != nil {
			return true, err
		}
	}
	for _, f := range m.fields {
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
	if m.Error != "" { // why it is dead
		r.Header.Set("X-Fre-Event-Error", m.Error)
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

// sign is over TIME.ID.BODY, in hexadecimal digits.
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
