// SPDX-License-Identifier: MIT
//
// holdfast-go - holdfast's own Go package as a candidate (bench/cand/cand.h): one
// client for the process, as a program would have it.  With the argument `cancel`
// the context of all calls could end.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"holdfast"
)

var (
	client *holdfast.Client
	ctx    = context.Background()
	kept   = map[string]*holdfast.Lock{}
	held   []*holdfast.Lock
)

// Nanoseconds of CLOCK_MONOTONIC, which Go keeps to itself.
func now() int64 {
	var ts syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-go:", err)
		os.Exit(1)
	}
}

func take(key string, opts *holdfast.Options) *holdfast.Lock {
	lock, err := client.Lock(ctx, key, opts)
	must(err)
	return lock
}

func pairs(n int64, key string) string {
	var text strings.Builder
	last := now()
	for i := int64(0); i < n; i++ {
		must(take(key, nil).Release(ctx))
		at := now()
		fmt.Fprintf(&text, " %d", at-last)
		last = at
	}
	return "ok" + text.String()
}

func many(threads, ms int64) string {
	var all sync.WaitGroup
	done := make([]int64, threads)
	begin := now()
	for i := range done {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			key := "many-go-" + strconv.Itoa(i)
			for now() < begin+ms*1000000 {
				must(take(key, nil).Release(ctx))
				done[i]++
			}
		}(i)
	}
	all.Wait()
	sum := int64(0)
	for _, n := range done {
		sum += n
	}
	return fmt.Sprintf("ok %d %d", sum, now()-begin)
}

func contend(at, ms int64, key string) string {
	var text strings.Builder
	time.Sleep(time.Duration(at - now()))
	for now() < at+ms*1000000 {
		asked := now()
		lock := take(key, nil)
		got := now()
		fmt.Fprintf(&text, " %d %d %d", asked, got, now())
		must(lock.Release(ctx))
	}
	return "ok" + text.String()
}

func hold(n, ttl, ms int64) string {
	begin := now()
	opts := &holdfast.Options{TTL: time.Duration(ttl) * time.Millisecond}
	for int64(len(held)) < n && now() < begin+ms*1000000 {
		held = append(held, take("held-go-"+strconv.Itoa(len(held)), opts))
	}
	return fmt.Sprintf("ok %d %d 0", len(held), now()-begin)
}

func drop() string {
	for _, lock := range held {
		lock.Release(ctx)
	}
	held = nil
	return "ok 0"
}

func watch(key string, ttl int64) string {
	lock := take(key, &holdfast.Options{TTL: time.Duration(ttl) * time.Millisecond})
	go func() {
		<-lock.Done()
		fmt.Printf("lost %d\n", now())
	}()
	return "ok"
}

func answer(words []string) string {
	number := func(i int) int64 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		must(err)
		return n
	}
	switch words[0] {
	case "pairs":
		return pairs(number(1), words[2])
	case "many":
		return many(number(1), number(2))
	case "contend":
		return contend(number(1), number(2), words[3])
	case "take", "wait":
		kept[words[1]] = take(words[1], nil)
		return "ok"
	case "give":
		must(kept[words[1]].Release(ctx))
		delete(kept, words[1])
		return "ok"
	case "hold":
		return hold(number(1), number(2), number(3))
	case "drop":
		return drop()
	case "watch":
		return watch(words[1], number(2))
	case "found":
		return "ok"
	}
	return "no such question"
}

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == "cancel" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	client, err = holdfast.Open(ctx, os.Getenv("HF_TEST_URL"), nil)
	must(err)
	fmt.Println("ready", holdfast.Version())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(answer(strings.Fields(in.Text())))
	}
	client.Close()
}
