// SPDX-License-Identifier: MIT

package holdfast

// #include "bridge.h"
import "C"

import (
	"context"
	"time"
)

// Observe tells the present state of a key, then every change, until the context
// is done or the client is closed; then the channel is closed. Changes may be
// merged while nobody receives; the last one is always told.
func (c *Client) Observe(ctx context.Context, key string) (<-chan Info, error) {
	return c.observe(ctx, key, 0)
}

// ObservePrefix does the same for all keys that begin with the prefix: first those
// that are held, then every change.
func (c *Client) ObservePrefix(ctx context.Context, prefix string) (<-chan Info, error) {
	return c.observe(ctx, prefix, C.HF_PREFIX)
}

func (c *Client) observe(ctx context.Context, key string, flags C.uint) (<-chan Info, error) {
	var observer *C.hf_observer
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	c.mu.Lock()
	c.last++
	id := c.last
	c.changes[id] = wake
	c.mu.Unlock()
	err := c.withKey(key, func(client *C.hf_client, k *C.char, err *C.struct_hf_error) C.hf_status {
		return C.hfg_observe(client, k, flags, C.uintptr_t(id), &observer, err)
	})
	if err != nil {
		c.unobserve(id)
		return nil, err
	}
	infos := make(chan Info)
	go func() {
		defer close(infos)
		defer C.hf_observe_stop(observer)
		defer c.unobserve(id)
		for {
			select {
			case <-wake:
			case <-ctx.Done():
				return
			case <-c.done:
				return
			}
			if !c.tell(ctx, observer, infos) {
				return
			}
		}
	}()
	return infos, nil
}

// tell sends what the observer has; false: nobody receives any more.
func (c *Client) tell(ctx context.Context, observer *C.hf_observer, infos chan<- Info) bool {
	change := C.struct_hf_change{size: C.sizeof_struct_hf_change}
	change.info.size = C.sizeof_struct_hf_info
	for bool(C.hf_observer_next(observer, &change)) {
		select {
		case infos <- infoOf(C.GoString(&change.key[0]), &change.info):
		case <-ctx.Done():
			return false
		case <-c.done:
			return false
		}
	}
	return true
}

func (c *Client) unobserve(id uintptr) {
	c.mu.Lock()
	delete(c.changes, id)
	c.mu.Unlock()
}

// Collected is what Collect has done.
type Collected struct{ LookedAt, Removed, Kept uint64 }

// Collect removes what keys that have been free for this long left behind in the
// service; a dry run only counts.
func (c *Client) Collect(older time.Duration, dryRun bool) (Collected, error) {
	ret := C.struct_hf_collected{size: C.sizeof_struct_hf_collected}
	err := c.with(func(client *C.hf_client) error {
		var cerr C.struct_hf_error
		return failure(C.hf_collect(client, ms(older), C.bool(dryRun), &ret, &cerr), &cerr)
	})
	return Collected{uint64(ret.looked_at), uint64(ret.removed), uint64(ret.kept)}, err
}
