package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"
	"github.com/cloudwego/kitex/pkg/streaming"

	"github.com/seqsvr/seqsvr/proto/gen/descriptors"
)

// reflection answers gRPC's server reflection, so that grpcurl and the like can
// list and call what is served without the .proto files. Its messages are small
// and fixed, so they are read and written field by field here; v1 and v1alpha
// have the same ones.
type reflection struct {
	// services are the full names of what is served.
	services []string
}

// reflectionMethod is the service's one method, in v1 and v1alpha alike; no other service has it.
const reflectionMethod = "ServerReflectionInfo"

type servedService struct {
	name   string
	served bool
}

func allServices(svc Services) []servedService {
	return []servedService{
		{"seqsvr.v1.Admin", svc.Admin != nil},
		{"seqsvr.v1.Peer", svc.Peer != nil},
		{"seqsvr.v1.Seq", svc.Seq != nil},
		{"seqsvr.v1.SetAdmin", svc.SetAdmin != nil},
		{"seqsvr.v1.Sets", svc.Sets != nil},
		{"seqsvr.v1.Store", svc.Store != nil},
	}
}

func newReflection(svc Services) *reflection {
	r := &reflection{}
	for _, s := range allServices(svc) {
		if s.served {
			r.services = append(r.services, s.name)
		}
	}
	return r
}

// rawMessage is a message as it travels. Kitex's codec calls its methods.
type rawMessage []byte

func (m *rawMessage) Marshal(out []byte) ([]byte, error) { return append(out, *m...), nil }

func (m *rawMessage) Unmarshal(in []byte) error {
	*m = append((*m)[:0], in...)
	return nil
}

// reflectionRequestMax bounds a request: a name, in a few fields.
const reflectionRequestMax = 4096

// serve answers one stream until its client, or the server, ends it. It waits
// for nothing but the next request, so it is only asked in a stop whether one is there.
func (r *reflection) serve(ctx context.Context, stopping context.Context, stream streaming.Stream) error {
	got := make(chan error)
	var req rawMessage
	for {
		go func() {
			err := stream.RecvMsg(&req)
			select {
			case got <- err:
			case <-ctx.Done():
			case <-stopping.Done(): // the stream has ended, or ends
			}
		}()
		select {
		case err := <-got:
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-stopping.Done():
			return encodeStatus(ErrStopping).Err()
		}
		reply, err := r.answer(req)
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "reflection request: %v", err)
		}
		out := rawMessage(reply)
		if err := stream.SendMsg(&out); err != nil {
			return err
		}
	}
}

// Fields of ServerReflectionRequest and ServerReflectionResponse.
const (
	askFileByName   = 3
	askFileOfSymbol = 4
	askExtension    = 5
	askExtensions   = 6
	askServices     = 7

	tellRequest  = 2
	tellFiles    = 4
	tellServices = 6
	tellError    = 7
)

// answer makes the response to a request.
func (r *reflection) answer(req []byte) ([]byte, error) {
	// The question is the last of its fields that is set, as in any oneof.
	field, value := uint64(0), []byte(nil)
	for rest := req; len(rest) > 0; {
		no, v, after, err := nextField(rest)
		if err != nil {
			return nil, err
		}
		if rest = after; no >= askFileByName && no <= askServices {
			field, value = no, v
		}
	}
	out := appendField(nil, tellRequest, req)
	switch field {
	case askServices:
		var list []byte
		for _, s := range r.services {
			list = appendField(list, 1, appendField(nil, 1, []byte(s)))
		}
		return appendField(out, tellServices, list), nil
	case askFileByName, askFileOfSymbol:
		for i := range descriptors.Files {
			f := &descriptors.Files[i]
			if field == askFileByName && f.Name == string(value) || field == askFileOfSymbol && slices.Contains(f.Symbols, string(value)) {
				return appendField(out, tellFiles, filesFrom(f, nil, map[string]bool{})), nil
			}
		}
		return appendField(out, tellError, notFound("%q is not defined here", value)), nil
	case askExtension, askExtensions:
		return appendField(out, tellError, notFound("there are no extensions")), nil
	}
	return nil, errors.New("it asks nothing that is known")
}

// filesFrom appends a file and all that it imports.
func filesFrom(f *descriptors.File, out []byte, done map[string]bool) []byte {
	done[f.Name] = true
	out = appendField(out, 1, []byte(f.Proto))
	for i := range descriptors.Files {
		if g := &descriptors.Files[i]; !done[g.Name] && slices.Contains(f.Imports, g.Name) {
			out = filesFrom(g, out, done)
		}
	}
	return out
}

// notFound is an ErrorResponse.
func notFound(format string, args ...any) []byte {
	out := binary.AppendUvarint([]byte{1 << 3}, uint64(codes.NotFound))
	return appendField(out, 2, fmt.Appendf(nil, format, args...))
}

// appendField adds a field of bytes.
func appendField(out []byte, no uint64, value []byte) []byte {
	out = binary.AppendUvarint(out, no<<3|2)
	out = binary.AppendUvarint(out, uint64(len(value)))
	return append(out, value...)
}

var errField = errors.New("malformed message")

// nextField takes a field of bytes, or skips a number; then value is nil.
func nextField(b []byte) (no uint64, value, rest []byte, err error) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, nil, errField
	}
	b = b[n:]
	v, n := binary.Uvarint(b)
	switch kind := tag & 7; {
	case kind == 0 && n > 0:
		return tag >> 3, nil, b[n:], nil
	case kind == 2 && n > 0 && v <= uint64(len(b)-n):
		end := n + int(v)
		return tag >> 3, b[n:end], b[end:], nil
	}
	return 0, nil, nil, errField
}
