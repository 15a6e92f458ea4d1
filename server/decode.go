package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/template"
)

const maxJSONBytes = 1 << 20

// decode parses a JSON body and rejects unknown fields. A malformed body is a 400 with line and
// column.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	err = d.Decode(v)
	text := "several JSON values"
	switch {
	case err != nil:
		text = wording.JSON(err)
	case !d.More():
		return nil
	}
	offset := d.InputOffset()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset - 1 // Offset includes the offending byte
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	before := string(body[:min(max(offset, 0), int64(len(body)))])
	line := 1 + strings.Count(before, "\n")
	column := len(before) - strings.LastIndexByte(before, '\n')
	return badRequest("body:%d:%d: %s", line, column, text)
}

func badRequest(format string, args ...any) error {
	return failure.Wrap(failure.BadRequest, fmt.Errorf(format, args...), "")
}

func mediaType(r *http.Request) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t
}

const tarType = "application/x-tar"

// limitOf parses a size as in templates. Empty text means 0.
func limitOf(field, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := template.ParseBytes(text)
	if err != nil {
		return 0, badRequest("%s: %v", field, err)
	}
	return n, nil
}
