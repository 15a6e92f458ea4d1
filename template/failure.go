package template

import (
	"strings"

	"github.com/fre-engine/fre/failure"
)

// Code returns [failure.Template].
func (e *Error) Code() failure.Code { return failure.Template }

// Next returns the user's next step.
func (e *Error) Next() string {
	if strings.HasSuffix(e.File, ".yaml") || strings.HasSuffix(e.File, ".yml") {
		return "correct the template; `fre template schema` prints the valid fields"
	}
	return "correct " + e.File + ", then build or deploy again"
}

// Code returns [failure.Template].
func (e Errors) Code() failure.Code { return failure.Template }

// Code returns [failure.Template].
func (e *FieldError) Code() failure.Code { return failure.Template }
