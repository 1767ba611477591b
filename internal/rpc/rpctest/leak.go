// Package rpctest has what tests of packages that use internal/rpc need.
package rpctest

import "go.uber.org/goleak"

// IgnoreKitex excepts from a leak check the goroutines that Kitex keeps for the
// whole process: timers, worker pools, and streams allocated ahead.
func IgnoreKitex() []goleak.Option {
	var o []goleak.Option
	for _, f := range []string{
		"github.com/cloudwego/kitex/pkg/utils.(*SharedTicker).Tick",
		"github.com/cloudwego/kitex/pkg/utils.(*SharedTicker).syncExec",
		"github.com/cloudwego/kitex/client.(*timeoutPool).createWorker.func1",
		"github.com/cloudwego/kitex/client.(*timeoutPool).createTicker.func1",
		"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/grpc.preallocateForStream",
	} {
		o = append(o, goleak.IgnoreAnyFunction(f))
	}
	return o
}
