// River, working off jobs that do nothing, for `./dev bench jobs`.
//
//	river-burn migrate URL
//	river-burn fill URL N
//	river-burn burn URL N    works N jobs off and prints the seconds it took
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type noOp struct {
	N int `json:"n"`
}

func (noOp) Kind() string { return "no_op" }

type worker struct {
	river.WorkerDefaults[noOp]
	left *atomic.Int64
	done chan struct{}
}

func (w *worker) Work(context.Context, *river.Job[noOp]) error {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Args[2])
	must(err)
	config.MaxConns = 15
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(err)
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	switch os.Args[1] {
	case "migrate":
		migrator, err := rivermigrate.New(driver, nil)
		must(err)
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		must(err)
	case "fill":
		client, err := river.NewClient(driver, &river.Config{})
		must(err)
		for left := number(); left > 0; left -= 5000 {
			jobs := make([]river.InsertManyParams, min(left, 5000))
			for i := range jobs {
				jobs[i] = river.InsertManyParams{Args: noOp{N: i}}
			}
			_, err := client.InsertManyFast(ctx, jobs)
			must(err)
		}
	case "burn":
		left := &atomic.Int64{}
		left.Store(int64(number()))
		done := make(chan struct{})
		workers := river.NewWorkers()
		river.AddWorker(workers, &worker{left: left, done: done})
		// The settings of River's own benchmark.
		client, err := river.NewClient(driver, &river.Config{
			FetchCooldown:     2 * time.Millisecond,
			FetchPollInterval: 20 * time.Millisecond,
			Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
			Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
			Workers:           workers,
		})
		must(err)
		begin := time.Now()
		must(client.Start(ctx))
		<-done
		// Stopping waits until every completed job is stored.
		must(client.Stop(ctx))
		fmt.Printf("%.6f\n", time.Since(begin).Seconds())
	}
}

func number() int {
	n, err := strconv.Atoi(os.Args[3])
	must(err)
	return n
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
