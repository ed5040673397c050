// SPDX-License-Identifier: MIT

// Leader [URL] is a service of which one instance works at a time.
//
// Start it twice, on any machines. One of them leads and works; when it is stopped,
// killed, or cut off from the service of the locks, the other one goes on. The loss
// of the lock cancels the context of the work before the other one begins.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"holdfast"
)

// step is a part of the work: short, and it ends when it must.
func step(ctx context.Context) error {
	select {
	case <-time.After(50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func lead(ctx context.Context, lock *holdfast.Lock) error {
	fmt.Println("leads with fence", lock.Fence())
	for {
		if err := step(ctx); err != nil {
			var lost *holdfast.LostError
			if errors.As(lock.Err(), &lost) {
				fmt.Println("lost:", lost.Reason)
			}
			return err
		}
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("HOLDFAST_URL")
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	client, err := holdfast.Open(ctx, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // the next one begins at once
	err = client.Elect(ctx, "leader", &holdfast.Options{TTL: 10 * time.Second}, lead)
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}
