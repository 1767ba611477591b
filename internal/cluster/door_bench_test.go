package cluster

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// BenchmarkRedisDoor is 50 connections that each write a pipeline and read the
// replies; cpu-ns/op counts that client too.
func BenchmarkRedisDoor(b *testing.B) {
	const uids, conns = 10_000, 50
	_, c := warmCluster(b, uids)
	addr := c.Endpoints().Redis
	for _, pipeline := range []int{1, 16} {
		b.Run(fmt.Sprintf("pipeline=%d", pipeline), func(b *testing.B) {
			b.ReportAllocs()
			began := cpu()
			var wg sync.WaitGroup
			for i := range conns {
				wg.Go(func() {
					nc, err := net.Dial("tcp", addr)
					if err != nil {
						b.Error(err)
						return
					}
					defer nc.Close()
					r := bufio.NewReader(nc)
					rng := rand.New(rand.NewPCG(1, uint64(i)))
					var out []byte
					for n := b.N / conns; n > 0; n -= pipeline {
						out = out[:0]
						for range pipeline {
							key := fmt.Append(nil, rng.Uint64()%uids)
							out = fmt.Appendf(out, "*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n", len(key), key)
						}
						if _, err := nc.Write(out); err != nil {
							b.Error(err)
							return
						}
						for range pipeline {
							line, err := r.ReadSlice('\n')
							if err != nil || line[0] != ':' {
								b.Errorf("%q %v", line, err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(cpu()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}
