// SPDX-License-Identifier: MIT
//
// etcd - etcd's Go package as a candidate (bench/cand/cand.h): one client for
// the process, and a session for each goroutine, as concurrency.Mutex wants it.
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

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
	"go.etcd.io/etcd/version"
)

var (
	client   *clientv3.Client
	sessions []*concurrency.Session
	kept     = map[string]*concurrency.Mutex{}
	held     []*concurrency.Mutex
	out      = bufio.NewWriter(os.Stdout)
)

// Nanoseconds of CLOCK_MONOTONIC, which Go keeps to itself.
func now() int64 {
	var ts syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd-go:", err)
		os.Exit(1)
	}
}

func session(i int) *concurrency.Session {
	for len(sessions) <= i {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		must(err)
		sessions = append(sessions, s)
	}
	return sessions[i]
}

func mutex(i int, key string) *concurrency.Mutex {
	return concurrency.NewMutex(session(i), "go/"+key)
}

func pair(m *concurrency.Mutex) {
	must(m.Lock(context.TODO()))
	must(m.Unlock(context.TODO()))
}

func pairs(n int64, key string) string {
	var text strings.Builder
	m, last := mutex(0, key), now()
	for i := int64(0); i < n; i++ {
		pair(m)
		at := now()
		fmt.Fprintf(&text, " %d", at-last)
		last = at
	}
	return "ok" + text.String()
}

func many(threads, ms int64) string {
	var all sync.WaitGroup
	done := make([]int64, threads)
	locks := make([]*concurrency.Mutex, threads)
	for i := range locks {
		locks[i] = mutex(i, "many-"+strconv.Itoa(i))
	}
	begin := now()
	for i := range locks {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for now() < begin+ms*1000000 {
				pair(locks[i])
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
	m := mutex(0, key)
	time.Sleep(time.Duration(at - now()))
	for now() < at+ms*1000000 {
		asked := now()
		must(m.Lock(context.TODO()))
		got := now()
		fmt.Fprintf(&text, " %d %d %d", asked, got, now())
		must(m.Unlock(context.TODO()))
	}
	return "ok" + text.String()
}

// Many locks may share a session, whose lease keeps them all.
func hold(n, ttl, ms int64) string {
	begin := now()
	s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/1000)))
	must(err)
	var all sync.WaitGroup
	var mu sync.Mutex
	next := int64(0)
	for i := 0; i < 32; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n || now() > begin+ms*1000000 {
					return
				}
				m := concurrency.NewMutex(s, "go/held-"+strconv.FormatInt(i, 10))
				must(m.Lock(context.TODO()))
				mu.Lock()
				held = append(held, m)
				mu.Unlock()
			}
		}()
	}
	all.Wait()
	return fmt.Sprintf("ok %d %d 0", len(held), now()-begin)
}

func drop() string {
	lost := 0
	for _, m := range held {
		if m.Unlock(context.TODO()) != nil {
			lost++
		}
	}
	held = nil
	return fmt.Sprintf("ok %d", lost)
}

func watch(key string, ttl int64) string {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(int((ttl+999)/1000)))
	must(err)
	must(concurrency.NewMutex(s, "go/"+key).Lock(context.TODO()))
	go func() {
		<-s.Done()
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
		kept[words[1]] = mutex(0, words[1])
		must(kept[words[1]].Lock(context.TODO()))
		return "ok"
	case "give":
		must(kept[words[1]].Unlock(context.TODO()))
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
	return "no " + words[0]
}

func main() {
	var err error
	client, err = clientv3.New(clientv3.Config{
		Endpoints: []string{os.Getenv("ETCDCTL_ENDPOINTS")}})
	must(err)
	session(0)
	fmt.Println("ready", version.Version)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if words := strings.Fields(in.Text()); len(words) > 0 {
			fmt.Fprintln(out, answer(words))
			out.Flush()
		}
	}
}
