package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/moby/spdystream"
)

const (
	bulkBytes = 200 << 20
	// The timeout of client-go for the reply to a new stream.
	streamReplyTimeout = 30 * time.Second
)

type client struct {
	*spdystream.Connection
}

// call tests every behaviour of a server, and ends as Kubernetes does: it resets its streams
// and sends GOAWAY.
func call(address string) error {
	socket, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	connection, err := spdystream.NewConnection(socket, false)
	if err != nil {
		return err
	}
	go connection.Serve(spdystream.NoOpStreamHandler)
	client := client{connection}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"echoes", client.echoes},
		{"send", func() error { return client.transfer("send") }},
		{"receive", func() error { return client.transfer("receive") }},
		{"both", func() error { return client.transfer("both") }},
		{"reset", client.reset},
		{"refuse", client.refuse},
		{"cancel", client.cancel},
		{"ping", client.ping},
	} {
		start := time.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%s: %v\n", step.name, time.Since(start))
	}
	open, err := client.open("ignore", 0)
	if err != nil {
		return err
	}
	if err := open.Reset(); err != nil {
		return err
	}
	return connection.CloseWait()
}

func (c client) open(task string, size int) (*spdystream.Stream, error) {
	headers := http.Header{}
	headers.Set("task", task)
	headers.Set("bytes", strconv.Itoa(size))
	stream, err := c.CreateStream(headers, nil, false)
	if err != nil {
		return nil, err
	}
	return stream, stream.WaitTimeout(streamReplyTimeout)
}

// Several concurrent streams, each half-closed first.
func (c client) echoes() error {
	var wait sync.WaitGroup
	failures := make(chan error, 20)
	for index := range cap(failures) {
		wait.Go(func() { failures <- c.echo(index * 10_000) })
	}
	wait.Wait()
	close(failures)
	var all error
	for failure := range failures {
		all = errors.Join(all, failure)
	}
	return all
}

func (c client) echo(size int) error {
	stream, err := c.open("echo", 0)
	if err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- receive(stream, size) }()
	if err := send(stream, size); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	return <-received
}

// transfer sends or receives much data. The task is that of the server.
func (c client) transfer(task string) error {
	stream, err := c.open(task, bulkBytes)
	if err != nil {
		return err
	}
	received := make(chan error, 1)
	if task != "receive" {
		go func() { received <- receive(stream, bulkBytes) }()
	}
	if task != "send" {
		if err := send(stream, bulkBytes); err != nil {
			return err
		}
	}
	if err := stream.Close(); err != nil {
		return err
	}
	if task != "receive" {
		return <-received
	}
	answer, err := io.ReadAll(stream)
	if err == nil && string(answer) != strconv.Itoa(bulkBytes) {
		err = fmt.Errorf("answered %q", answer)
	}
	return err
}

func (c client) reset() error {
	stream, err := c.open("reset", 0)
	if err != nil {
		return err
	}
	// This library reports a reset as a normal end.
	before, err := io.ReadAll(stream)
	if err == nil && string(before) != "before" {
		err = fmt.Errorf("read %q", before)
	}
	return err
}

func (c client) refuse() error {
	if _, err := c.open("refuse", 0); !errors.Is(err, spdystream.ErrReset) {
		return fmt.Errorf("not refused: %w", err)
	}
	return nil
}

// cancel resets a stream. The server has to detect the reset, and to report its status on the next
// stream.
func (c client) cancel() error {
	stream, err := c.open("ignore", 0)
	if err != nil {
		return err
	}
	if _, err := stream.Write([]byte("x")); err != nil {
		return err
	}
	if err := stream.Reset(); err != nil {
		return err
	}
	query, err := c.open("cancelled", 0)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(query)
	if err == nil && string(answer) != "Cancel" {
		err = fmt.Errorf("answered %q", answer)
	}
	return errors.Join(err, query.Close())
}

func (c client) ping() error {
	for range 10 {
		if _, err := c.Ping(); err != nil {
			return err
		}
	}
	return nil
}
