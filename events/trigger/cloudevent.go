package trigger

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
)

// cloudEvent is a CloudEvent as its function gets it, in binary mode (CloudEvents HTTP protocol
// binding 1.0.2, section 3.1).
type cloudEvent struct {
	id, source, typ string
	header          [][2]string // Ce-*, and Content-Type
	body            []byte
}

// maxBatch bounds the events in one request.
const maxBatch = 1000

var attributeName = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// parseCloudEvents reads a request in binary, structured or batch mode.
func parseCloudEvents(header [][2]string, body []byte) ([]cloudEvent, error) {
	contentType := field(header, "Content-Type")
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media = ""
	}
	switch {
	case media == "application/cloudevents-batch+json":
		var raw []json.RawMessage
		if err := strictJSON(body, &raw); err != nil {
			return nil, fmt.Errorf("batch: %w", err)
		}
		if len(raw) > maxBatch {
			return nil, fmt.Errorf("batch: %d events, the limit is %d", len(raw), maxBatch)
		}
		all := make([]cloudEvent, 0, len(raw))
		for i, r := range raw {
			e, err := structured(r)
			if err != nil {
				return nil, fmt.Errorf("batch[%d]: %w", i, err)
			}
			all = append(all, e)
		}
		return all, nil
	case media == "application/cloudevents+json":
		e, err := structured(body)
		return []cloudEvent{e}, err
	case strings.HasPrefix(media, "application/cloudevents"):
		return nil, fmt.Errorf("content type %q is not supported: send application/cloudevents+json", media)
	}
	return binaryMode(header, contentType, body)
}

func binaryMode(header [][2]string, contentType string, body []byte) ([]cloudEvent, error) {
	e := cloudEvent{id: field(header, "Ce-Id"), source: field(header, "Ce-Source"), typ: field(header, "Ce-Type"), body: body}
	for _, f := range header {
		name, ours := strings.CutPrefix(strings.ToLower(f[0]), "ce-")
		if !ours {
			continue
		}
		if !attributeName.MatchString(name) {
			return nil, fmt.Errorf("attribute %q: lower-case letters and digits", name)
		}
		e.header = append(e.header, [2]string{textproto.CanonicalMIMEHeaderKey(f[0]), f[1]})
	}
	if contentType != "" {
		e.header = append(e.header, [2]string{"Content-Type", contentType})
	}
	return []cloudEvent{e}, e.check(field(header, "Ce-Specversion"))
}

func (e *cloudEvent) check(version string) error {
	switch {
	case version == "":
		return errors.New("not a CloudEvent: specversion is missing")
	case version != "1.0":
		return fmt.Errorf("specversion is %q: only 1.0 is known", version)
	case e.id == "":
		return errors.New("id is missing")
	case e.source == "":
		return errors.New("source is missing")
	case e.typ == "":
		return errors.New("type is missing")
	}
	return nil
}

// attributesOf returns the attributes of an event in JSON, without data and null.
func attributesOf(all map[string]json.RawMessage) (map[string]string, error) {
	attributes := map[string]string{}
	for name, raw := range all {
		if name == "data" || name == "data_base64" || string(raw) == "null" {
			continue
		}
		if !attributeName.MatchString(name) {
			return nil, fmt.Errorf("attribute %q: lower-case letters and digits", name)
		}
		value, err := attribute(raw)
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		attributes[name] = value
	}
	return attributes, nil
}

// unprintable reports whether a character may not stand in a media type.
func unprintable(r rune) bool { return r != '\t' && (r < ' ' || r >= 0x7f) }

// structured reads the JSON format (CloudEvents JSON event format 1.0.2).
func structured(text []byte) (cloudEvent, error) {
	var e cloudEvent
	var all map[string]json.RawMessage
	if err := strictJSON(text, &all); err != nil {
		return e, err
	}
	attributes, err := attributesOf(all)
	if err != nil {
		return e, err
	}
	e.id, e.source, e.typ = attributes["id"], attributes["source"], attributes["type"]
	if err := e.check(attributes["specversion"]); err != nil {
		return e, err
	}
	contentType := attributes["datacontenttype"]
	if err := e.data(all["data"], all["data_base64"], &contentType); err != nil {
		return e, err
	}
	delete(attributes, "datacontenttype")
	for name, value := range attributes {
		e.header = append(e.header, [2]string{"Ce-" + strings.ToUpper(name[:1]) + name[1:], percent(value)})
	}
	slices.SortFunc(e.header, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	if contentType != "" {
		if strings.ContainsFunc(contentType, unprintable) {
			return e, fmt.Errorf("datacontenttype %q: a media type has printable characters of ASCII, for example text/plain; charset=utf-8", contentType)
		}
		e.header = append(e.header, [2]string{"Content-Type", contentType}) // unchanged (section 3.1.1)
	}
	return e, nil
}

func (e *cloudEvent) data(data, encoded json.RawMessage, contentType *string) (err error) {
	switch {
	case data != nil && encoded != nil:
		return errors.New("data and data_base64 exclude each other")
	case encoded != nil:
		var s string
		if err := json.Unmarshal(encoded, &s); err != nil {
			return fmt.Errorf("data_base64: %w", err)
		}
		if e.body, err = base64.StdEncoding.DecodeString(s); err != nil {
			return fmt.Errorf("data_base64: %w", err)
		}
	case data == nil:
	case isJSON(*contentType):
		e.body = data
		if *contentType == "" {
			*contentType = "application/json"
		}
	default:
		e.body = plain(data)
	}
	return nil
}

// plain returns the text of a JSON string, or any other JSON as it is.
func plain(data json.RawMessage) []byte {
	var s string
	if json.Unmarshal(data, &s) == nil {
		return []byte(s)
	}
	return data
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return contentType == "" || err == nil && (media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json"))
}

// attribute returns a string, a boolean or an integer as text.
func attribute(raw json.RawMessage) (string, error) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var b bool
	if json.Unmarshal(raw, &b) == nil {
		return string(raw), nil
	}
	var n int32
	if json.Unmarshal(raw, &n) == nil {
		return string(raw), nil
	}
	return "", errors.New("neither text, a boolean nor a whole number of 32 bits")
}

// percent encodes a value for a header field (section 3.1.3.2 of the binding).
func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// strictJSON decodes a single value, and refuses data after the value.
func strictJSON(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("several JSON values")
	}
	return nil
}
