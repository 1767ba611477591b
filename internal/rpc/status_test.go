package rpc

import (
	"testing"

	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestAResetStreamMayHaveBeenExecuted(t *testing.T) {
	const reset = "stream terminated by RST_STREAM with error code: "
	for _, c := range []struct {
		code    codes.Code
		message string
		want    seqpb.Code
	}{
		{codes.Unavailable, reset + "REFUSED_STREAM", seqpb.Code_CODE_UNAVAILABLE}, // what HTTP/2 says of it
		{codes.Internal, "the stream is done", seqpb.Code_CODE_UNAVAILABLE},        // before the request was written
		{codes.ResourceExhausted, reset + "ENHANCE_YOUR_CALM", seqpb.Code_CODE_UNKNOWN_RESULT},
		{codes.ResourceExhausted, reset + "FLOW_CONTROL_ERROR", seqpb.Code_CODE_UNKNOWN_RESULT},
		{codes.PermissionDenied, reset + "INADEQUATE_SECURITY", seqpb.Code_CODE_UNKNOWN_RESULT},
		{codes.ResourceExhausted, "message of 9 bytes: at most 8 are accepted", seqpb.Code_CODE_BUSY},
	} {
		e, ok := classify("Alloc", "a:1", status.Err(c.code, c.message), nil).(*Error)
		if !ok || e.Code != c.want || e.NotSent != (c.want == seqpb.Code_CODE_UNAVAILABLE) {
			t.Errorf("%s: %+v, want %v", c.message, e, c.want)
		}
	}
}
