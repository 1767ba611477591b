package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/bytedance/gopkg/lang/mcache"
	"github.com/cloudwego/kitex/pkg/remote"
	"github.com/cloudwego/kitex/pkg/remote/codec"
	"github.com/cloudwego/kitex/pkg/remote/codec/protobuf/encoding"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"
	"github.com/cloudwego/kitex/pkg/rpcinfo"
	"github.com/cloudwego/kitex/pkg/serviceinfo"
	"github.com/cloudwego/kitex/pkg/streaming"
)

// What a peer may make this process hold. Kitex's gRPC codec trusts the length
// in a message's prefix (up to 4 GB) and unpacks gzip without end, hence the
// receiving half is done here.
const (
	// DefaultMaxMessageBytes bounds one message, also after decompression.
	DefaultMaxMessageBytes = 4 << 20
	// budgetMessages times the message limit is what all calls together may be receiving.
	budgetMessages = 64
	// smallMessageBytes is not worth counting against the budget.
	smallMessageBytes = 64 << 10
	// Per connection: streams, each with a window of unread bytes.
	maxStreamsPerConn   = 1024
	streamWindowBytes   = 128 << 10
	connWindowBytes     = 1 << 20
	maxHeaderBytes      = 32 << 10
	grpcMessageHeadSize = 5
)

// limits is shared by all connections of a server.
type limits struct {
	maxMessage int
	receiving  atomic.Int64
}

func (l *limits) reserve(n int) bool {
	if n <= smallMessageBytes {
		return true
	}
	if l.receiving.Add(int64(n)) > int64(budgetMessages)*int64(l.maxMessage) {
		l.receiving.Add(-int64(n))
		return false
	}
	return true
}

func (l *limits) release(n int) {
	if n > smallMessageBytes {
		l.receiving.Add(-int64(n))
	}
}

func (l *limits) tooLarge(n uint64) error {
	return status.Errorf(codes.ResourceExhausted, "message of %d bytes: at most %d are accepted", n, l.maxMessage)
}

// limitedStream receives within the limits; everything else is Kitex's stream.
type limitedStream struct {
	streaming.Stream
	conn   nphttp2.GRPCConn
	ri     rpcinfo.RPCInfo
	limits *limits
}

// protoMessage is what the generated messages are.
type protoMessage interface {
	Unmarshal(b []byte) error
}

func (s *limitedStream) RecvMsg(m any) error {
	msg, ok := m.(protoMessage)
	if !ok {
		return status.Errorf(codes.Internal, "cannot receive into a %T", m)
	}
	var head [grpcMessageHeadSize]byte
	if _, err := s.conn.Read(head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if uint64(size) > uint64(s.limits.maxMessage) {
		return s.limits.tooLarge(uint64(size))
	}
	n := int(size)
	if !s.limits.reserve(n) {
		return status.Err(codes.ResourceExhausted, "too many large messages at once: try again")
	}
	defer s.limits.release(n)
	buf := mcache.Malloc(n)
	defer mcache.Free(buf)
	if n > 0 {
		if _, err := s.conn.Read(buf); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	body := buf
	switch head[0] {
	case 0:
	case 1:
		var err error
		if body, err = s.unpack(buf); err != nil {
			return err
		}
	default:
		return status.Errorf(codes.Internal, "message with compression flag %d: want 0 or 1", head[0])
	}
	// The generated Unmarshal copies out of body (a test holds it to that).
	if err := msg.Unmarshal(body); err != nil {
		return status.Errorf(codes.InvalidArgument, "malformed message: %v", err)
	}
	return nil
}

func (s *limitedStream) unpack(packed []byte) ([]byte, error) {
	c, err := encoding.FindCompressor(remote.GetRecvCompressor(s.ri))
	if err != nil || c == nil {
		return nil, status.Errorf(codes.Unimplemented, "message compressed with %q: only gzip is known", remote.GetRecvCompressor(s.ri))
	}
	r, err := c.Decompress(bytes.NewReader(packed))
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "malformed compressed message: %v", err)
	}
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(r, int64(s.limits.maxMessage)+1))
	switch {
	case err != nil:
		return nil, status.Errorf(codes.InvalidArgument, "malformed compressed message: %v", err)
	case n > int64(s.limits.maxMessage):
		return nil, status.Errorf(codes.ResourceExhausted, "message unpacks to more than the %d bytes that are accepted", s.limits.maxMessage)
	}
	return out.Bytes(), nil
}

// protobufOnly is Kitex's codec of TTHeader and framed messages, narrowed to
// protobuf with a size limit. Left alone it would also take unframed Thrift,
// whose strings announce a length of their own that nothing bounds.
type protobufOnly struct{ inner codecWithMeta }

type codecWithMeta interface {
	remote.Codec
	remote.MetaDecoder
}

func newProtobufOnly(maxMessage int) remote.Codec {
	return protobufOnly{inner: codec.NewDefaultCodecWithSizeLimit(maxMessage).(codecWithMeta)}
}

var errNotProtobuf = errors.New("neither gRPC nor framed protobuf: this port speaks gRPC, TTHeader+protobuf and nothing else")

func (c protobufOnly) Encode(ctx context.Context, msg remote.Message, out remote.ByteBuffer) error {
	return c.inner.Encode(ctx, msg, out)
}

func (c protobufOnly) Decode(ctx context.Context, msg remote.Message, in remote.ByteBuffer) error {
	if err := c.DecodeMeta(ctx, msg, in); err != nil {
		return err
	}
	return c.DecodePayload(ctx, msg, in)
}

func (c protobufOnly) DecodeMeta(ctx context.Context, msg remote.Message, in remote.ByteBuffer) error {
	head, err := in.Peek(2 * codec.Size32)
	if err != nil {
		return err
	}
	magic := binary.BigEndian.Uint32(head[codec.Size32:]) & codec.MagicMask
	if !codec.IsTTHeader(head) && magic != codec.ProtobufV1Magic {
		return remote.NewTransError(remote.InvalidProtocol, errNotProtobuf)
	}
	if err := c.inner.DecodeMeta(ctx, msg, in); err != nil {
		return err
	}
	if msg.MessageType() == remote.Heartbeat {
		return nil
	}
	if pc := msg.RPCInfo().Config().PayloadCodec(); pc != serviceinfo.Protobuf {
		return remote.NewTransError(remote.InvalidProtocol, fmt.Errorf("payload codec %v: %w", pc, errNotProtobuf))
	}
	// What follows is: magic, length of the method's name, the name, a number
	// and the message. Kitex would believe any length of the name.
	if head, err = in.Peek(2 * codec.Size32); err != nil {
		return err
	}
	name := binary.BigEndian.Uint32(head[codec.Size32:])
	if name > maxMethodName || int(name)+3*codec.Size32 > msg.PayloadLen() {
		return remote.NewTransError(remote.ProtocolError, fmt.Errorf("method name of %d bytes in a payload of %d", name, msg.PayloadLen()))
	}
	return nil
}

const maxMethodName = 256

func (c protobufOnly) DecodePayload(ctx context.Context, msg remote.Message, in remote.ByteBuffer) error {
	return c.inner.DecodePayload(ctx, msg, in)
}

func (c protobufOnly) Name() string { return "protobuf-only" }
