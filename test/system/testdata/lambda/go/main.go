// Command bootstrap is the first handler of AWS's guide
// (docs.aws.amazon.com/lambda/latest/dg/golang-handler.html).
package main

import (
	"context"
	"fmt"

	"github.com/aws/aws-lambda-go/lambda"
)

// MyEvent is the guide's.
type MyEvent struct {
	Name string `json:"name"`
}

// HandleRequest is the guide's.
func HandleRequest(_ context.Context, event *MyEvent) (*string, error) {
	if event == nil {
		return nil, fmt.Errorf("received nil event")
	}
	message := fmt.Sprintf("Hello %s!", event.Name)
	return &message, nil
}

func main() { lambda.Start(HandleRequest) }
