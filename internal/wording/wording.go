// Package wording rewrites errors of Go's own packages for readers of FRE's messages: io/fs speaks
// of files, strconv and encoding/json of Go.
package wording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strconv"
	"strings"
)

// Missing rewrites the message of an error that ends with fs.ErrNotExist. kind is the kind of the
// missing object, "" if the message does not name a kind:
//
//	image "a:1": file does not exist            there is no image "a:1"
//	image a is being removed: file does not …   image a is being removed: does not exist
//
// Other messages stay as they are.
func Missing(message string) (words, kind string) {
	rest, ok := strings.CutSuffix(message, ": "+fs.ErrNotExist.Error())
	if !ok {
		return message, ""
	}
	before, object := "", rest
	if i := strings.LastIndex(rest, ": "); i >= 0 {
		before, object = rest[:i+2], rest[i+2:]
	}
	i := strings.IndexByte(object, '"')
	if i < 2 {
		return rest + ": does not exist", ""
	}
	if _, err := strconv.Unquote(object[i:]); err != nil {
		return rest + ": does not exist", ""
	}
	return before + "there is no " + object, strings.TrimSpace(object[:i])
}

// Flag rewrites the error of a command-line flag whose value cannot be parsed:
//
//	invalid argument "x" for "--max" flag: strconv.ParseInt: …   … flag: not a whole number
func Flag(err error) error {
	var number *strconv.NumError
	if !errors.As(err, &number) {
		if before, _, ok := strings.Cut(err.Error(), ": time: "); ok {
			return fmt.Errorf("%s: not a duration, for example 30s or 5m", before)
		}
		return err
	}
	reason := "not a number"
	switch {
	case errors.Is(err, strconv.ErrRange):
		reason = "too large or too small"
	case number.Func == "ParseBool":
		reason = "neither true nor false"
	case number.Func != "ParseFloat":
		reason = "not a whole number"
	}
	before, _, _ := strings.Cut(err.Error(), ": strconv.")
	return fmt.Errorf("%s: %s", before, reason)
}

// JSON returns the reason why a text cannot be decoded, without the names of Go's types:
// "max must be a whole number, not string".
func JSON(err error) string {
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := kind.Field
		if field == "" {
			field = "the body"
		}
		return fmt.Sprintf("%s must be %s, not %s", field, jsonType(kind.Type.Kind()), kind.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// jsonType returns the name in JSON for values of a Go kind.
func jsonType(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}
