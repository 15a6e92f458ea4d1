package api

import _ "embed"

// TemplateSchema is the JSON Schema (2020-12) of fret.yaml, for editors and
// `fre template schema`.
//
//go:embed template.schema.json
var TemplateSchema []byte
