//go:build !crashpoints

package main

import (
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// What is here in place of the crash points, which only tests build: see crash_points.go.

func crashAroundCommits(string, bool) {}

func crashAround(p outbox.Publisher) outbox.Publisher { return p }

func crashAroundAnswers() []grpc.ServerOption { return nil }
