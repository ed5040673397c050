// SPDX-License-Identifier: MIT

package holdfast_test

import (
	"context"
	"fmt"
	"log"

	"holdfast"
)

func Example() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "mem:", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "nightly", nil, func(ctx context.Context, lock *holdfast.Lock) error {
		fmt.Println("nobody else works on", lock.Key())
		return nil
	})
	fmt.Println(err)
	// Output:
	// nobody else works on nightly
	// <nil>
}
