package storesvr

import (
	"testing"
	"time"
)

func TestPartsGrowWhileTheyAreQuickAndShrinkWhenTheyAreNot(t *testing.T) {
	for name, tt := range map[string]struct {
		now, most, keys int
		took            time.Duration
		want            int
	}{
		"quick":                       {8192, 32768, 8192, partAim / 2, 16384},
		"at no time at all":           {8192, 32768, 8192, 0, 32768},
		"close to the aim":            {8192, 32768, 8192, partAim * 4 / 5, 10240},
		"at the most":                 {32768, 32768, 32768, time.Millisecond, 32768},
		"slow":                        {8192, 32768, 8192, partAim * 8 / 5, 5120},
		"far too slow":                {8192, 32768, 8192, time.Second, 4096},
		"slow and the least":          {1024, 32768, 1024, time.Second, 1024},
		"few keys say nothing":        {8192, 32768, 10, partAim / 4, 8192},
		"few keys that are slow do":   {8192, 32768, 10, 2 * partAim, 4096},
		"configured below the least":  {4, 4, 4, time.Second, 4},
		"the least is not above most": {20, 20, 20, time.Millisecond, 20},
	} {
		if got := nextPartSize(tt.now, tt.most, tt.keys, tt.took); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
