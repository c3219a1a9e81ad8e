package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"syscall"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// container is all containers of all pods: a directory to run processes in.
type container struct {
	directory string
}

// ExecInContainer runs a command to its end.
func (c container) ExecInContainer(ctx context.Context, _, _, _ string, words []string,
	in io.Reader, out, err io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize,
	_ time.Duration,
) error {
	if tty {
		return c.runInTerminal(ctx, words, in, out, sizes)
	}
	return c.run(ctx, words, in, out, err)
}

// AttachContainer gives back what comes in: the containers here run cat.
func (c container) AttachContainer(ctx context.Context, _, _, _ string,
	in io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize,
) error {
	return c.run(ctx, []string{"cat"}, in, out, err)
}

func (c container) run(ctx context.Context, words []string, in io.Reader, out, err io.Writer) error {
	if len(words) == 0 {
		return errors.New("no command")
	}
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Dir = c.directory
	// A test that is killed leaves nothing behind.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Stdout, command.Stderr = out, err
	if in != nil {
		// Not command.Stdin: a command may end before its input does.
		stdin, err := command.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			defer stdin.Close()
			io.Copy(stdin, in)
		}()
	}
	return exitCode(command.Run())
}

// runInTerminal gives a command a terminal for all its streams.
func (c container) runInTerminal(ctx context.Context, words []string, in io.Reader, out io.Writer,
	sizes <-chan remotecommand.TerminalSize,
) error {
	if len(words) == 0 {
		return errors.New("no command")
	}
	terminal, err := newTerminal()
	if err != nil {
		return err
	}
	// Hangs up on whoever is still there.
	defer terminal.master.Close()
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Dir = c.directory
	command.Stdin, command.Stdout, command.Stderr = terminal.slave, terminal.slave, terminal.slave
	command.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL,
	}
	err = command.Start()
	terminal.slave.Close()
	if err != nil {
		return err
	}
	go func() {
		for size := range sizes {
			terminal.resize(size)
		}
	}()
	if in != nil {
		go func() {
			io.Copy(terminal.master, in)
			// The client is gone.
			command.Process.Signal(syscall.SIGHUP)
		}()
	}
	// Ends with EIO when nobody has the terminal open any more.
	io.Copy(out, terminal.master)
	return exitCode(command.Wait())
}

// exitCode says how a command ended as a kubelet does.
func exitCode(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	code := exit.ExitCode()
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		// As a shell does.
		code = 128 + int(status.Signal())
	}
	return utilexec.CodeExitError{Err: err, Code: code}
}

// PortForward connects a stream with a port of this host.
func (container) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer connection.Close()
	go func() {
		io.Copy(connection, stream)
		// The client has said its last; it may still listen.
		connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}
