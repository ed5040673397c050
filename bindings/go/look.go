// SPDX-License-Identifier: MIT

package holdfast

// #include "bridge.h"
import "C"

import (
	"context"
	"errors"
	"strings"
	"time"
	"unsafe"
)

// Info is what the service says about a key. It may be outdated when it arrives.
// A duration or number of -1 is unknown.
type Info struct {
	Key      string
	Held     bool // the rest describes the first holder
	Shared   bool
	Fence    uint64        // of the newest grant, also when it is free; 0 unknown
	Left     time.Duration // of the lease
	Since    time.Duration // how long it has been held
	Holders  int
	Waiters  int
	Owner    string
	Note     string
	Takeover time.Duration // if the holder dies, where that is more than Left; or 0
	Broken   bool
	Kept     bool // released; MinHold keeps it until Left is over
	Permits  int  // 0: a plain lock
	Slot     int
}

func duration(ms C.int64_t) time.Duration {
	if ms < 0 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

func infoOf(key string, i *C.struct_hf_info) Info {
	return Info{
		Key: key, Held: bool(i.held), Shared: bool(i.shared), Fence: uint64(i.fence),
		Left: duration(i.left_ms), Since: duration(i.since_ms),
		Holders: int(i.holders), Waiters: int(i.waiters),
		Owner: C.GoString(&i.owner[0]), Note: C.GoString(&i.note[0]),
		Takeover: duration(i.takeover_ms), Broken: bool(i.broken), Kept: bool(i.kept),
		Permits: int(i.permits), Slot: int(i.slot),
	}
}

// Inspect looks at a key without touching it.
func (c *Client) Inspect(key string) (Info, error) {
	info := C.struct_hf_info{size: C.sizeof_struct_hf_info}
	err := c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hf_inspect(client, k, &info, err)
	})
	return infoOf(key, &info), err
}

// rows makes a slice of what the bridge has collected. Without a key of their own
// the rows are about this one.
func rows(key string, r *C.struct_hfg_rows) []Info {
	var ret []Info
	for i := range unsafe.Slice(r.row, int(r.n)) {
		row := &unsafe.Slice(r.row, int(r.n))[i]
		k := C.GoString(row.key)
		if k == "" {
			k = key
		}
		ret = append(ret, infoOf(k, &row.info))
	}
	return ret
}

// Holders lists those who hold a key.
func (c *Client) Holders(key string) ([]Info, error) {
	var found C.struct_hfg_rows
	defer C.hfg_rows_free(&found)
	err := c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hfg_holders(client, k, &found, err)
	})
	return rows(key, &found), err
}

// A Waiter waits for a key. A duration of -1 is unknown.
type Waiter struct {
	Place   int // 1: the next
	Permits int // it asks for one of so many; 0: for a plain lock
	Shared  bool
	Since   time.Duration // how long it has waited
	Left    time.Duration // until its place is given up, unless it asks again
	Owner   string
	Note    string
}

// Waiters lists those who wait for a key, in their order; ErrUnsupported where the
// service does not know them.
func (c *Client) Waiters(key string) ([]Waiter, error) {
	var found C.struct_hfg_waiters
	var ret []Waiter
	err := c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hfg_waiters(client, k, &found, err)
	})
	defer C.free(unsafe.Pointer(found.waiter))
	for i := range unsafe.Slice(found.waiter, int(found.n)) {
		w := &unsafe.Slice(found.waiter, int(found.n))[i]
		ret = append(ret, Waiter{
			Place: int(w.place), Permits: int(w.permits), Shared: bool(w.shared),
			Since: duration(w.since_ms), Left: duration(w.left_ms),
			Owner: C.GoString(&w.owner[0]), Note: C.GoString(&w.note[0]),
		})
	}
	return ret, err
}

// List lists the locks that are held and whose keys begin with the prefix.
func (c *Client) List(prefix string) ([]Info, error) {
	var found C.struct_hfg_rows
	defer C.hfg_rows_free(&found)
	err := c.withKey(prefix, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hfg_list(client, k, &found, err)
	})
	return rows("", &found), err
}

// Check returns nil while the grant with this fence stands, else ErrLost.
func (c *Client) Check(key string, fence uint64) error {
	return c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hf_check(client, k, C.uint64_t(fence), err)
	})
}

// Break takes a lock away from its holder, if its grant is the one with this
// fence. Nobody else gets it before the holder has noticed or its lease is over.
func (c *Client) Break(key string, fence uint64) error {
	return c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hf_break(client, k, C.uint64_t(fence), err)
	})
}

// BreakForce does the same and frees the lock at once: for a holder that is known
// to be dead.
func (c *Client) BreakForce(key string, fence uint64) error {
	return c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hf_break_force(client, k, C.uint64_t(fence), err)
	})
}

// ---- what the service is -------------------------------------------------------

// Traits is a set of what a service promises.
type Traits uint

const (
	Fenced       = Traits(C.HF_TRAIT_FENCED)    // every grant has a rising number
	Leased       = Traits(C.HF_TRAIT_LEASED)    // lapses when it is not renewed
	Queued       = Traits(C.HF_TRAIT_QUEUED)    // first come, first served
	Notify       = Traits(C.HF_TRAIT_NOTIFY)    // waiters are woken
	SharedLocks  = Traits(C.HF_TRAIT_SHARED)    // Options.Shared works
	Reentrant    = Traits(C.HF_TRAIT_REENTRANT) // owner ids count across processes
	Detachable   = Traits(C.HF_TRAIT_DETACH)    // Detach and Attach work
	Breakable    = Traits(C.HF_TRAIT_BREAK)     // Break works
	Processes    = Traits(C.HF_TRAIT_PROCESSES) // excludes between processes
	Machines     = Traits(C.HF_TRAIT_MACHINES)  // excludes between machines
	Death        = Traits(C.HF_TRAIT_DEATH)     // a dead process frees at once
	Twice        = Traits(C.HF_TRAIT_TWICE)     // only after twice the lease
	Noted        = Traits(C.HF_TRAIT_NOTED)     // owner and note are kept
	Permitted    = Traits(C.HF_TRAIT_PERMITS)   // Options.Permits works
	MinHoldLocks = Traits(C.HF_TRAIT_MIN_HOLD)  // Options.MinHold works
)

// Has says whether all these traits are in the set.
func (t Traits) Has(all Traits) bool { return t&all == all }

// A Service is what a client is connected to.
type Service struct {
	Traits   Traits
	Scheme   string
	Endpoint string // without any password
	Warning  string // what is doubtful about this set-up, or ""
	TTL      time.Duration
}

// Describe says what the client is connected to.
func (c *Client) Describe() (Service, error) {
	s := C.struct_hf_service{size: C.sizeof_struct_hf_service}
	err := c.with(func(client *C.hf_client) error {
		var cerr C.struct_hf_error
		return failure(C.hf_describe(client, &s, &cerr), &cerr)
	})
	return Service{
		Traits: Traits(s.traits), Scheme: C.GoString(&s.scheme[0]),
		Endpoint: C.GoString(&s.endpoint[0]), Warning: C.GoString(&s.warning[0]),
		TTL: duration(s.ttl_ms),
	}, err
}

// ---- a lock that outlives the process ------------------------------------------

// A Handle is what another process needs to go on with a lock.
type Handle struct {
	Token string `json:"token"`
	Ref   string `json:"ref"`
	Fence uint64 `json:"fence,string"`
}

func (h *Handle) c() (*C.struct_hf_handle, error) {
	c := &C.struct_hf_handle{size: C.sizeof_struct_hf_handle, fence: C.uint64_t(h.Fence)}
	if len(h.Token) >= len(c.token) || len(h.Ref) >= len(c.ref) ||
		strings.IndexByte(h.Token+h.Ref, 0) >= 0 {
		return nil, errorf(ErrInvalid, "not a handle of a detached lock")
	}
	for i := range []byte(h.Token) {
		c.token[i] = C.char(h.Token[i])
	}
	for i := range []byte(h.Ref) {
		c.ref[i] = C.char(h.Ref[i])
	}
	return c, nil
}

// withHandle calls the library with a handle.
func (c *Client) withHandle(key string, h Handle, opts *Options,
	f func(*C.hf_client, *C.char, *C.struct_hf_handle, *C.struct_hf_lock_opts, *C.struct_hf_error) C.hf_status) error {
	handle, err := h.c()
	if err != nil {
		return err
	}
	copts, free, err := opts.c()
	if err != nil {
		return err
	}
	defer free()
	return c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return f(client, k, handle, copts, err)
	})
}

// Detach ends the lock here and leaves it in the service, where it lapses at the
// end of its lease unless somebody attaches to it.
func (l *Lock) Detach() (Handle, error) {
	p, idle, err := l.take()
	if err != nil {
		return Handle{}, err
	}
	left(idle)
	var cerr C.struct_hf_error
	h := C.struct_hf_handle{size: C.sizeof_struct_hf_handle}
	if err := failure(C.hf_detach(p, &h, &cerr), &cerr); err != nil {
		return Handle{}, l.failed(err)
	}
	return Handle{C.GoString(&h.token[0]), C.GoString(&h.ref[0]), uint64(h.fence)}, nil
}

// Attach takes up a lock that was detached. A handle is good for one Attach.
func (c *Client) Attach(key string, h Handle, opts *Options) (*Lock, error) {
	var p *C.hf_lock
	err := c.withHandle(key, h, opts, func(client *C.hf_client, k *C.char, handle *C.struct_hf_handle,
		o *C.struct_hf_lock_opts, err *C.struct_hf_error) C.hf_status {
		return C.hf_attach(client, k, handle, o, &p, err)
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.grantedNow(key, p)
	if c.closed {
		l.end("closed")
	}
	return l, nil
}

// ExtendHandle renews a detached lock without taking it up.
func (c *Client) ExtendHandle(key string, h Handle, opts *Options) error {
	return c.withHandle(key, h, opts, func(client *C.hf_client, k *C.char, handle *C.struct_hf_handle,
		o *C.struct_hf_lock_opts, err *C.struct_hf_error) C.hf_status {
		return C.hf_handle_extend(client, k, handle, o, err)
	})
}

// ReleaseHandle releases a detached lock without taking it up.
func (c *Client) ReleaseHandle(key string, h Handle, opts *Options) error {
	return c.withHandle(key, h, opts, func(client *C.hf_client, k *C.char, handle *C.struct_hf_handle,
		o *C.struct_hf_lock_opts, err *C.struct_hf_error) C.hf_status {
		return C.hf_handle_release(client, k, handle, o, err)
	})
}

// ---- election ------------------------------------------------------------------

// Elect campaigns for a key, and leads whenever elected: lead runs while the lock
// is held, and its context is canceled when that is lost. Then, after lead has
// returned, the next campaign begins. When lead returns while it still leads, the
// leadership is given back and Elect returns what lead did; if lead panics it is
// given back, and the panic goes on. Options.Note is what others see of the leader.
func (c *Client) Elect(ctx context.Context, key string, opts *Options, lead func(context.Context, *Lock) error) error {
	for {
		lock, err := c.Lock(ctx, key, opts)
		if err != nil {
			return err
		}
		err, released := lock.run(ctx, lead)
		if errors.Is(released, ErrLost) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			err = released
		}
		return err
	}
}

// Leader says who holds the key; nil if nobody does.
func (c *Client) Leader(key string) (*Info, error) {
	info, err := c.Inspect(key)
	if err != nil || !info.Held {
		return nil, err
	}
	return &info, nil
}
