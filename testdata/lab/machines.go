package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/vm"
)

// machines runs the commands for virtual machines.
func machines(ctx context.Context, command string, a args) error {
	if command == "up" {
		image, err := vm.Build(ctx, a.arch, os.Stderr)
		if err != nil {
			return err
		}
		_, err = vm.Up(ctx, vm.Options{
			State: a.state, Image: image, Hosts: a.hosts, Memory: a.memory,
			KernelArgs: a.kernelArgs, Log: os.Stderr,
		})
		return err
	}
	l, err := vm.Open(a.state, os.Stderr)
	if command == "down" && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if command == "down" {
		return l.Down(ctx)
	}
	return machine(ctx, l, command, a.rest)
}

// machine runs the commands for one virtual machine.
func machine(ctx context.Context, l *vm.Lab, command string, rest []string) error {
	h, err := named(l.Host, rest)
	if err != nil {
		return err
	}
	switch {
	case command == "ssh" && len(rest) > 1:
		return attach(l.SSH(ctx, h, strings.Join(rest[1:], " ")))
	case command == "kill":
		return l.Kill(h)
	case command == "start":
		return l.Start(ctx, h)
	case command == "pause" && len(rest) == 2:
		return pause(ctx, l, h, rest[1])
	}
	return errors.New(usage)
}

func pause(ctx context.Context, l *vm.Lab, h hosts.Host, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return l.Pause(ctx, h, d)
}
