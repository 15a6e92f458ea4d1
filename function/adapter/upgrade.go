package adapter

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/fre-engine/fre/function/channel"
)

// upgrade asks the server for another protocol, on a new connection. If the server agrees, the
// bodies of event and answer carry the other protocol; otherwise the result is an ordinary answer.
func (p *proxy) upgrade(ctx context.Context, e *channel.Event, head []byte) (_ *channel.Answer, err error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp4", p.address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: nc, r: bufio.NewReaderSize(nc, 16<<10), used: true}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer func() {
		if err != nil {
			stop()
			_ = c.Close()
		}
	}()
	if err := c.send(head); err != nil {
		return nil, err
	}
	resp, err := readResponse(c.r, e.Method) //nolint:bodyclose // by answerBody, or its connection is
	if err != nil {
		return nil, err
	}
	headers, err := answerHeaders(resp)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		sent := make(chan error, 1)
		sent <- nil
		return &channel.Answer{Status: resp.StatusCode, Headers: headers, Body: &answerBody{
			ReadCloser: resp.Body, proxy: p, c: c, sent: sent, stop: stop, last: resp.Close,
		}}, nil
	}
	for _, v := range resp.Header["Upgrade"] {
		headers = append(headers, [2]string{"Upgrade", v})
	}
	go c.forward(e.Body) // until the event's end, which ends its body
	return &channel.Answer{Status: resp.StatusCode, Headers: headers, Body: &tunnel{c, stop}}, nil
}

// forward sends the client's side of the other protocol, and then its end.
func (c *connection) forward(body io.Reader) {
	_, err := io.Copy(c.Conn, body)
	if err == nil {
		err = c.Conn.(*net.TCPConn).CloseWrite()
	}
	if err != nil {
		_ = c.Close()
	}
}

// tunnel is the server's side of the other protocol.
type tunnel struct {
	c    *connection
	stop func() bool
}

func (t *tunnel) Read(p []byte) (int, error) { return t.c.r.Read(p) }

func (t *tunnel) Close() error {
	t.stop()
	return t.c.Close()
}
