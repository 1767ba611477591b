package redis

import "github.com/tidwall/redcon"

// replies are written one behind the other.
type replies struct{ b []byte }

func (r *replies) simple(s string) { r.b = redcon.AppendString(r.b, s) }
func (r *replies) error(s string)  { r.b = redcon.AppendError(r.b, s) }
func (r *replies) int(n int64)     { r.b = redcon.AppendInt(r.b, n) }
func (r *replies) array(n int)     { r.b = redcon.AppendArray(r.b, n) }
func (r *replies) bulk(b []byte)   { r.b = redcon.AppendBulk(r.b, b) }
func (r *replies) text(s string)   { r.b = redcon.AppendBulkString(r.b, s) }
func (r *replies) raw(s string)    { r.b = append(r.b, s...) }
func (r *replies) null()           { r.b = redcon.AppendNull(r.b) }
