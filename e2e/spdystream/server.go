package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"

	"github.com/moby/spdystream"
)

// pattern is test data without repetitions, the same as in the Rust tests.
var pattern = func() []byte {
	bytes := make([]byte, 1_000_003)
	state := uint32(1)
	for index := range bytes {
		state = state*1_664_525 + 1_013_904_223
		bytes[index] = byte(state >> 24)
	}
	return bytes
}()

// handleStream runs the task in the headers of a stream. As in Kubernetes, the reply is sent
// first, in the goroutine of the library.
func handleStream(stream *spdystream.Stream) {
	task := stream.Headers().Get("task")
	if task == "refuse" {
		stream.Refuse()
		return
	}
	reply := http.Header{}
	if task == "headers" {
		reply = stream.Headers().Clone()
	}
	if err := stream.SendReply(reply, false); err != nil {
		log.Printf("%v: %v", stream, err)
		return
	}
	go func() {
		if err := runTask(task, stream); err != nil {
			log.Printf("%v, %v: %v", stream, task, err)
			stream.Reset()
		}
	}()
}

func runTask(task string, stream *spdystream.Stream) error {
	size, _ := strconv.Atoi(stream.Headers().Get("bytes"))
	switch task {
	case "echo":
		if _, err := io.Copy(stream, stream); err != nil {
			return err
		}
	case "send":
		if err := send(stream, size); err != nil {
			return err
		}
	case "receive":
		if err := receive(stream, size); err != nil {
			return err
		}
		fmt.Fprintf(stream, "%d", size)
	case "both":
		received := make(chan error, 1)
		go func() { received <- receive(stream, size) }()
		if err := send(stream, size); err != nil {
			return err
		}
		if err := <-received; err != nil {
			return err
		}
	case "reset":
		fmt.Fprint(stream, "before")
		return stream.Reset()
	case "ignore":
		return nil
	}
	return stream.Close()
}

// send writes the pattern in chunks of the size that io.Copy uses.
func send(stream io.Writer, size int) error {
	for sent := 0; sent < size; {
		from := sent % len(pattern)
		to := min(from+32*1024, len(pattern), from+size-sent)
		count, err := stream.Write(pattern[from:to])
		if err != nil {
			return err
		}
		sent += count
	}
	return nil
}

// receive reads to the end of a stream, and expects exactly `size` bytes of the pattern.
func receive(stream io.Reader, size int) error {
	received := 0
	buffer := make([]byte, 64*1024)
	for {
		count, err := stream.Read(buffer)
		for chunk := buffer[:count]; len(chunk) > 0; {
			expected := pattern[received%len(pattern):]
			length := min(len(chunk), len(expected))
			if !bytes.Equal(chunk[:length], expected[:length]) {
				return fmt.Errorf("wrong bytes at %d", received)
			}
			chunk = chunk[length:]
			received += length
		}
		if err == io.EOF && received == size {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w after %d bytes of %d", err, received, size)
		}
	}
}
