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
	"net/textproto"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// senders orders callbacks, and has a sender for each stream with orders.
type senders struct {
	cfg        *Config
	live       context.Context // until Close
	tasks      *tasks
	streams    *streams
	bodies     *bodies
	deliveries *deliveries
	metrics    *metrics
	slots      chan struct{} // a slot for each callback being sent

	mu      sync.Mutex
	ordered map[string]bool // by stream, while a sender runs: whether a callback was ordered meanwhile
}

// order writes to disk that a result is to be sent. Ordering a result twice sends it once.
func (a *senders) order(result *message) error {
	order := message{Entry: result.Entry, callback: result.callback}
	out, err := order.encode(kindOrders.subject(result.Tenant, result.Function, result.ID))
	if err != nil {
		return err
	}
	out.Header[nats.MsgIdHdr] = []string{result.ID + "." + strconv.FormatUint(result.seq, 10)} // a replayed event has a later sequence, so another id
	if _, _, err = a.streams.put(a.live, kindOrders, result.Tenant, out); err != nil {
		return err
	}
	a.wake(kindOrders.of(result.Tenant))
	return nil
}

// wake starts a sender for a stream, or tells the running sender of a new order.
func (a *senders) wake(stream string) {
	if len(a.cfg.Callbacks.Secret) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, runs := a.ordered[stream]; runs {
		a.ordered[stream] = true
		return
	}
	c := &sender{
		senders: a, stream: stream, client: a.cfg.Callbacks.client(), receivers: map[string]*receiver{},
		held: make(chan struct{}, callbacksHeld), own: make(chan struct{}, callbacksOfTenant),
	}
	if a.tasks.start(c.run) {
		a.ordered[stream] = false
	}
}

// sender sends the results that one stream orders. Each tenant waits only for its own receivers.
type sender struct {
	*senders // the parts that all senders share

	stream string
	client *http.Client
	held   chan struct{} // a slot for each order in memory
	own    chan struct{} // a slot for each callback of the tenant being sent

	hosts     sync.Mutex
	receivers map[string]*receiver // by host, for the orders in memory
}

type receiver struct {
	orders int
	slots  chan struct{}
}

// run sends results until no order has arrived for idleQueue.
func (c *sender) run() {
	defer c.client.CloseIdleConnections()
	var cons jetstream.Consumer
	ctx := c.live
	for ctx.Err() == nil {
		if cons == nil {
			var err error
			if cons, err = c.consumer(ctx); err != nil {
				c.cfg.Log.Debug("events: consumer of callbacks", "stream", c.stream, "error", err)
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
		msg, err := nextOrder(ctx, cons)
		if msg != nil {
			c.tasks.fork(func() {
				defer func() { <-c.held }()
				c.sendOrder(msg)
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
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Patience)
	defer cancel()
	return c.streams.consumer(ctx, c.stream, jetstream.ConsumerConfig{
		Durable: "send", AckPolicy: jetstream.AckExplicitPolicy, AckWait: callbackAckWait, MaxDeliver: -1, MaxAckPending: -1,
	})
}

// nextOrder waits for an order; nil if none has arrived for idleQueue.
func nextOrder(ctx context.Context, cons jetstream.Consumer) (jetstream.Msg, error) {
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ordered[c.stream] {
		c.ordered[c.stream] = false
		return false
	}
	delete(c.ordered, c.stream)
	return true
}

// sendOrder makes one try at an order, once the slots allow it.
func (c *sender) sendOrder(msg jetstream.Msg) {
	order, err := decode(msg.Subject(), msg.Headers(), nil)
	meta, merr := msg.Metadata()
	if err = errors.Join(err, merr); err != nil {
		c.cfg.Log.Error("events: callback not understood", "subject", msg.Subject(), "error", err)
		_ = msg.Term() // fails only with the connection
		return
	}
	key := keyOfMessage(meta)
	if !c.deliveries.take(key, msg) {
		return
	}
	stop := keepDelivered(msg, callbackAckWait/3)
	v := c.inTurn(msg, meta, key, order)
	stop()
	c.deliveries.release(key, msg, v)
}

func (c *sender) inTurn(msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey, order *message) verdict {
	host := ""
	if u, err := url.Parse(order.callback); err == nil {
		host = u.Host
	}
	r := c.receiver(host)
	defer c.drop(host)
	// The narrowest limit first: an order that waits for its receiver must not hold a wider slot.
	for _, slots := range []chan struct{}{r.slots, c.own, c.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-c.live.Done():
			return verdict{again: true}
		}
	}
	return c.try(msg, meta, key, order)
}

func (c *sender) receiver(host string) *receiver {
	c.hosts.Lock()
	defer c.hosts.Unlock()
	r := c.receivers[host]
	if r == nil {
		r = &receiver{slots: make(chan struct{}, callbacksOfReceiver)}
		c.receivers[host] = r
	}
	r.orders++
	return r
}

func (c *sender) drop(host string) {
	c.hosts.Lock()
	defer c.hosts.Unlock()
	if r := c.receivers[host]; r.orders > 1 {
		r.orders--
	} else {
		delete(c.receivers, host)
	}
}

// try makes one try; a failed order comes again. A try broken off by the engine's end counts.
func (c *sender) try(msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey, order *message) verdict {
	n, _, err := c.deliveries.count(key, meta)
	if err != nil {
		c.cfg.Log.Error("events: callback not begun", "id", order.ID, "function", order.Function, "error", err)
		c.deliveries.wait(key, n-1)
		return verdict{again: true, after: retryStream}
	}
	final := n > callbackTries
	if final {
		n--
		err = fmt.Errorf("the engine ended during try %d", n)
	} else {
		final, err = c.post(order)
	}
	switch {
	case err == nil:
		c.metrics.callbacks.WithLabelValues("done").Inc()
	case c.live.Err() != nil:
		c.deliveries.wait(key, n-1)
		return verdict{again: true}
	case !final && n < callbackTries:
		c.deliveries.wait(key, n)
		return verdict{again: true, after: callbackPause << (n - 1)}
	default:
		c.metrics.callbacks.WithLabelValues("failed").Inc()
		c.cfg.Log.Warn("events: callback given up", "id", order.ID, "function", order.Function, "tries", n, "error", err)
	}
	_ = msg.Ack() // without an acknowledgement the result is sent again
	c.deliveries.end(key)
	return verdict{}
}

// post sends a result. final means that another try is no use.
func (c *sender) post(order *message) (final bool, err error) {
	to, err := parseCallback(order.callback) // an earlier engine may have accepted the URL
	if err == nil {
		err = c.cfg.Callbacks.allow(to) // the configuration may have changed
	}
	if err != nil {
		return true, err
	}
	m, err := c.streams.lastEnd(c.live, kindResults, order.Tenant, order.Function, order.ID)
	if err != nil {
		return errors.Is(err, ErrNotFound), fmt.Errorf("result of the event: %w", err)
	}
	r, err := c.newRequest(to, m)
	if err != nil {
		return true, err
	}
	resp, err := c.client.Do(r)
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

// newRequest makes the HTTP request that carries a result, and signs the body.
func (c *sender) newRequest(to *url.URL, m *message) (*http.Request, error) {
	d := newDetails(m.Entry, m, c.bodies)
	now := strconv.FormatInt(time.Now().Unix(), 10)
	size, signature, err := sign(c.cfg.Callbacks.Secret, now, d)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(c.live, http.MethodPost, to.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if size > 0 { // read the body again rather than hold it in memory
		r.ContentLength, r.GetBody = size, d.Body
		if r.Body, err = d.Body(); err != nil {
			return nil, err
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
	return r, nil
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
