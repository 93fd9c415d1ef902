package faults

import (
	"testing"

	"github.com/leasehold/leasehold/server/internal/netfault"
)

// newProxy starts a proxy that ends with the test.
func newProxy(t *testing.T, target string) *netfault.Proxy {
	t.Helper()
	p, err := netfault.New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
