// SPDX-License-Identifier: MIT

package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast"
)

// server starts a Redis, which freeze and thaw act on.
func server(t *testing.T) (url string, freeze, thaw func()) {
	t.Helper()
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := at.Addr().(*net.TCPAddr).Port
	at.Close()
	cmd := exec.Command("redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1",
		"--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	url = fmt.Sprintf("redis://127.0.0.1:%d", port)
	until(t, "a server", func() bool {
		c, err := holdfast.Open(bg, url, nil)
		if errors.Is(err, holdfast.ErrUnsupported) {
			t.Skip(err)
		}
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return url, func() { cmd.Process.Signal(syscall.SIGSTOP) }, func() { cmd.Process.Signal(syscall.SIGCONT) }
}

func soon(t *testing.T, what string, limit time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %v", what, took)
	}
}

func TestTheContextEndsACallOfASilentService(t *testing.T) {
	url, freeze, thaw := server(t)
	c, err := holdfast.Open(bg, url, &holdfast.ClientOptions{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	l := lock(t, c, "k", &holdfast.Options{TTL: time.Minute})
	freeze()
	for i := 0; i < 100; i++ { // more than may be in C at a time
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		soon(t, "Lock", 8*time.Second, func() {
			if _, err := c.Lock(ctx, fmt.Sprint("free", i), nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		cancel()
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	soon(t, "Release", 8*time.Second, func() {
		if err := l.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	thaw()
	until(t, "free", func() bool { i, err := c.Inspect("k"); return err == nil && !i.Held })
	until(t, "all free", func() bool { all, err := c.List("free"); return err == nil && len(all) == 0 })
	c.Close()
}

func TestAServiceThatWakesUpServesAll(t *testing.T) {
	url, freeze, thaw := server(t)
	c, err := holdfast.Open(bg, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	freeze()
	var all sync.WaitGroup
	for i := 0; i < 200; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			l, err := c.Lock(bg, fmt.Sprint("k", i%150), nil)
			if err != nil {
				t.Error(err)
			} else if err := l.Release(bg); err != nil {
				t.Error(err)
			}
		}(i)
	}
	until(t, "all begun", func() bool { return runtime.NumGoroutine() > 200 })
	if n := threads(t); n > 64+64+60 {
		t.Errorf("%d threads", n) // in C, of the library, and of the runtime
	}
	thaw()
	all.Wait()
}

func TestCloseEndsThoughTheServiceIsSilent(t *testing.T) {
	url, freeze, thaw := server(t)
	defer thaw()
	c, err := holdfast.Open(bg, url, &holdfast.ClientOptions{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	l := lock(t, c, "k", nil)
	freeze()
	end := make(chan error, 2)
	for i := 0; i < 2; i++ {
		go func(i int) {
			_, err := c.Lock(bg, fmt.Sprint("other", i), nil)
			end <- err
		}(i)
	}
	time.Sleep(50 * time.Millisecond)
	soon(t, "Close", 20*time.Second, func() { c.Close() })
	for i := 0; i < 2; i++ {
		if err := <-end; err == nil {
			t.Error("granted")
		}
	}
	if l.Held() || l.Err() == nil {
		t.Error("held")
	}
}

// A call to the silent service ends when that wakes up. begun waits until it is made.
func begun(t *testing.T, c *holdfast.Client, call func()) (ended chan struct{}) {
	t.Helper()
	requests := func() uint64 {
		stats, err := c.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return stats.Requests
	}
	before := requests()
	ended = make(chan struct{})
	go func() {
		call()
		close(ended)
	}()
	until(t, "a request", func() bool { return requests() > before })
	return ended
}

// before fails if the call has ended, which this one waited for then.
func before(t *testing.T, ended chan struct{}, what string) {
	t.Helper()
	select {
	case <-ended:
		t.Errorf("%s has waited for another call", what)
	default:
	}
}

func TestNothingWaitsForAnExtendOfASilentService(t *testing.T) {
	url, freeze, thaw := server(t)
	c, err := holdfast.Open(bg, url, &holdfast.ClientOptions{Timeout: 25 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := lock(t, c, "k", &holdfast.Options{TTL: 2 * time.Minute})
	freeze()
	ended := begun(t, c, func() { l.Extend(0) })
	if !l.Held() || l.Remaining() <= 0 {
		t.Error("not held")
	}
	before(t, ended, "Held")
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	before(t, ended, "Release")
	if l.Held() || l.Remaining() != 0 || l.Err() != holdfast.ErrReleased {
		t.Error("held")
	}
	if err := l.Extend(0); !errors.Is(err, holdfast.ErrInvalid) {
		t.Error(err)
	}
	before(t, ended, "Held")
	thaw()
	<-ended
	until(t, "free", func() bool { i, err := c.Inspect("k"); return err == nil && !i.Held })
}

func TestNothingWaitsForACloseThatWaits(t *testing.T) {
	url, freeze, thaw := server(t)
	c, err := holdfast.Open(bg, url, &holdfast.ClientOptions{Timeout: 25 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	other, err := holdfast.Open(bg, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l := lock(t, other, "k", &holdfast.Options{TTL: 2 * time.Minute})
	waits := make(chan error, 1)
	go func() {
		_, err := c.Lock(bg, "k", nil)
		waits <- err
	}()
	until(t, "a waiter", func() bool { i, err := other.Inspect("k"); return err == nil && i.Waiters > 0 })
	freeze()
	ended := begun(t, c, func() { c.Inspect("free") })
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	for err = nil; !errors.Is(err, holdfast.ErrInvalid); {
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		_, err = c.Lock(ctx, "free", nil)
		cancel()
	}
	before(t, ended, "Lock")
	if err := <-waits; !errors.Is(err, holdfast.ErrCanceled) {
		t.Error(err)
	}
	before(t, ended, "the end of a waiter")
	thaw()
	<-ended
	<-closed
	if err := l.Release(bg); err != nil {
		t.Error(err)
	}
}
