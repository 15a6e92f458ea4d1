// CloudEvents' conformance tool, which hooks for CloudEvents are tested with.
module github.com/fre-engine/fre/tools/cloudevents

go 1.26.0

tool github.com/cloudevents/conformance/cmd/cloudevents

require (
	github.com/cloudevents/conformance v0.2.0 // indirect
	github.com/inconshreveable/mousetrap v1.0.0 // indirect
	github.com/spf13/cobra v0.0.5 // indirect
	github.com/spf13/pflag v1.0.3 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
)
