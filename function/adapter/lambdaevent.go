package adapter

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fre-engine/fre/function/channel"
)

// httpEvent is an event in payload format 2.0
// (docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html),
// as for function URLs. The bootstraps of Python and Node do the same.
func httpEvent(e *channel.Event, body []byte) map[string]any {
	headers, cookies := map[string]string{}, []string{}
	for _, h := range e.Headers {
		name := strings.ToLower(h[0])
		switch have, ok := headers[name]; {
		case name == "cookie":
			for c := range strings.SplitSeq(h[1], ";") {
				cookies = append(cookies, strings.TrimSpace(c))
			}
		case ok:
			headers[name] = have + "," + h[1]
		default:
			headers[name] = h[1]
		}
	}
	now := time.Now().UTC()
	host := headers["host"]
	prefix, _, _ := strings.Cut(host, ".")
	out := map[string]any{
		"version": "2.0", "routeKey": "$default", "rawPath": e.Path, "rawQueryString": e.Query, "headers": headers,
		"isBase64Encoded": false,
		"requestContext": map[string]any{
			"accountId": "anonymous", "apiId": e.Function, "domainName": host, "domainPrefix": prefix,
			"http": map[string]any{
				"method": e.Method, "path": e.Path, "protocol": "HTTP/1.1", "sourceIp": clientAddress(headers["x-forwarded-for"]), "userAgent": headers["user-agent"],
			},
			"requestId": e.ID, "routeKey": "$default", "stage": "$default",
			"time": now.Format("02/Jan/2006:15:04:05 -0700"), "timeEpoch": now.UnixMilli(),
		},
	}
	if len(cookies) > 0 {
		out["cookies"] = cookies
	}
	if q := query(e.Query); len(q) > 0 {
		out["queryStringParameters"] = q
	}
	if len(body) > 0 {
		if isText(headers["content-type"]) && utf8.Valid(body) {
			out["body"] = string(body)
		} else {
			out["body"], out["isBase64Encoded"] = base64.StdEncoding.EncodeToString(body), true
		}
	}
	return out
}

// query joins the values of a repeated parameter.
func query(raw string) map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, value = unescape(name), unescape(value)
		if have, ok := out[name]; ok {
			value = have + "," + value
		}
		out[name] = value
	}
	return out
}

func unescape(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return strings.ToValidUTF8(u, "\ufffd")
	}
	return s
}

// isText reports whether a body of the type is passed as text.
func isText(contentType string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	kind = strings.TrimSpace(kind)
	return kind == "" || strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") ||
		slices.Contains([]string{"application/json", "application/xml", "application/javascript"}, kind)
}
