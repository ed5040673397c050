// SPDX-License-Identifier: MIT
//
// peer - etcd's own Go package beside us, for go.sh: one client, and a session for
// each contender, as concurrency.Mutex wants it.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

var client *clientv3.Client

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func session() *concurrency.Session {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	must(err)
	return s
}

// Take the lock, make `in`, wait for `go_on`, append a word to `order`.
func hold(name, in, goOn, order, word string) {
	m := concurrency.NewMutex(session(), name)
	must(m.Lock(context.Background()))
	must(os.WriteFile(in, nil, 0o644))
	for {
		if _, err := os.Stat(goOn); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	file, err := os.OpenFile(order, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	fmt.Fprintln(file, word)
	must(file.Close())
	must(m.Unlock(context.Background()))
}

// Wait for so long at most.
func try(name string, ms int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	s := session()
	defer s.Close()
	m := concurrency.NewMutex(s, name)
	err := m.Lock(ctx)
	if err == context.DeadlineExceeded {
		return false
	}
	must(err)
	must(m.Unlock(context.Background()))
	return true
}

// So many add one to the number in a file, so many times each.
func count(name, path string, contenders, times int) {
	var all sync.WaitGroup
	for i := 0; i < contenders; i++ {
		all.Add(1)
		go func(m *concurrency.Mutex) {
			defer all.Done()
			for k := 0; k < times; k++ {
				must(m.Lock(context.Background()))
				var n int
				text, err := os.ReadFile(path)
				must(err)
				_, err = fmt.Sscan(string(text), &n)
				must(err)
				must(os.WriteFile(path, []byte(fmt.Sprintln(n+1)), 0o644))
				must(m.Unlock(context.Background()))
			}
		}(concurrency.NewMutex(session(), name))
	}
	all.Wait()
}

func main() {
	var err error
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCDCTL_ENDPOINTS")}})
	must(err)
	switch os.Args[1] {
	case "hold":
		hold(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6])
		return
	case "try":
		ms, _ := strconv.Atoi(os.Args[3])
		if !try(os.Args[2], ms) {
			os.Exit(75)
		}
		return
	case "count":
		contenders, _ := strconv.Atoi(os.Args[4])
		times, _ := strconv.Atoi(os.Args[5])
		count(os.Args[2], os.Args[3], contenders, times)
		return
	}
	os.Exit(64)
}
