// SPDX-License-Identifier: MIT

package holdfast

// #include "bridge.h"
import "C"

import (
	"time"
	"unsafe"
)

// A Histogram counts times that something took.
type Histogram struct {
	Count uint64
	Sum   time.Duration

	// Buckets[i] counts those below 1<<i microseconds that are in no earlier
	// one; the last has the rest.
	Buckets [32]uint64
}

// Stats are the counters of a client since Open, but for Held and Waiting, which
// are now.
type Stats struct {
	// Acquisitions that have ended, by their outcome, and how long each waited.
	Granted, Busy, Timeout, Canceled, Unavailable, Uncertain, Failed uint64
	Wait                                                             Histogram

	Hold Histogram // from grant to release

	// Renewals: confirmed, not confirmed, confirmed when the lease was over; and
	// what was left of the lease when one was confirmed.
	Renewed, RenewalsFailed, RenewalsLate uint64
	Margin                                Histogram

	Lost       map[string]uint64 // by reason, as in LostError; those that are not 0
	AtRisk     uint64
	TakenBack  uint64 // claims, in the background
	Reconnects uint64

	// On Redis, Redlock and etcd; 0 elsewhere.
	Requests, BytesSent, BytesReceived uint64

	Held, Waiting uint64
}

func histogramOf(c *C.struct_hf_histogram) Histogram {
	h := Histogram{Count: uint64(c.count), Sum: time.Duration(c.sum_us) * time.Microsecond}
	for i, n := range c.buckets {
		h.Buckets[i] = uint64(n)
	}
	return h
}

// Stats returns the counters. It asks no service.
func (c *Client) Stats() (Stats, error) {
	s := C.struct_hf_stats{size: C.sizeof_struct_hf_stats}
	err := c.with(func(client *C.hf_client) error {
		var cerr C.struct_hf_error
		return failure(C.hf_stats(client, &s, &cerr), &cerr)
	})
	lost := map[string]uint64{}
	for reason, n := range s.lost {
		if n > 0 {
			lost[C.GoString(C.hf_loss_name(C.hf_loss(reason)))] = uint64(n)
		}
	}
	return Stats{
		Granted: uint64(s.granted), Busy: uint64(s.busy), Timeout: uint64(s.timeout),
		Canceled: uint64(s.canceled), Unavailable: uint64(s.unavailable),
		Uncertain: uint64(s.uncertain), Failed: uint64(s.failed),
		Wait: histogramOf(&s.wait), Hold: histogramOf(&s.hold),
		Renewed: uint64(s.renewed), RenewalsFailed: uint64(s.renewals_failed),
		RenewalsLate: uint64(s.renewals_late), Margin: histogramOf(&s.margin),
		Lost: lost, AtRisk: uint64(s.at_risk), TakenBack: uint64(s.taken_back),
		Reconnects: uint64(s.reconnects), Requests: uint64(s.requests),
		BytesSent: uint64(s.bytes_sent), BytesReceived: uint64(s.bytes_received),
		Held: uint64(s.held), Waiting: uint64(s.waiting),
	}, err
}

// StatsText returns the counters as OpenMetrics text, for a handler of /metrics.
func (c *Client) StatsText() (string, error) {
	text := ""
	err := c.with(func(client *C.hf_client) error {
		var cerr C.struct_hf_error
		size := C.size_t(16384)
		for {
			buf := (*C.char)(C.malloc(size))
			defer C.free(unsafe.Pointer(buf))
			need := C.size_t(0)
			st := C.hf_stats_text(client, buf, size, &need, &cerr)
			if st == C.HF_OK {
				text = C.GoStringN(buf, C.int(need-1))
			}
			if st == C.HF_OK || need <= size {
				return failure(st, &cerr)
			}
			size = need + 1024 // numbers may have become longer
		}
	})
	return text, err
}

// A ServiceKind is a kind of service that the library knows.
type ServiceKind struct {
	Name    string
	Schemes string // "redis rediss redis+unix"
	Options string // of its URLs
	Page    string // of the manual, in section 7
	Tested  string // the versions that the tests run against
	Module  string // the file that serves it; "" if the library does
	Missing string // why that cannot be loaded; "" if it can
	Traits  Traits // of most URLs
	Varies  Traits // that some URLs or servers add or remove
}

// Services lists every kind that this build knows. No server is asked.
func Services() ([]ServiceKind, error) {
	var cerr C.struct_hf_error
	var found C.struct_hfg_kinds
	var ret []ServiceKind
	defer C.hfg_kinds_free(&found)
	if err := failure(C.hfg_services(&found, &cerr), &cerr); err != nil {
		return nil, err
	}
	for i := range unsafe.Slice(found.kind, int(found.n)) {
		k := &unsafe.Slice(found.kind, int(found.n))[i]
		ret = append(ret, ServiceKind{
			Name: C.GoString(k.name), Schemes: C.GoString(k.schemes),
			Options: C.GoString(k.options), Page: C.GoString(k.page),
			Tested: C.GoString(k.tested), Module: C.GoString(k.module),
			Missing: C.GoString(k.missing),
			Traits:  Traits(k.traits), Varies: Traits(k.varies),
		})
	}
	return ret, nil
}
