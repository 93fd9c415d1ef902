package devpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// fill makes the files of a new server: an empty cluster, or a copy of the primary's.
func (s *Server) fill(ctx context.Context, target string) error {
	if s.cfg.StandbyOf == nil {
		return s.folder.initdb(ctx, s.bin, target, !s.cfg.Ephemeral)
	}
	return s.copyPrimary(ctx, target)
}

// copyPrimary has PostgreSQL's own tool copy a running server, and say whom to follow. It goes
// through the primary's socket, which needs no password and is open to PostgreSQL's user only.
func (s *Server) copyPrimary(ctx context.Context, target string) error {
	primary := s.cfg.StandbyOf
	// The programs may be links in a folder that has not all of them.
	postgres, err := filepath.EvalSymlinks(s.bin.postgres())
	if err != nil {
		return fmt.Errorf("copy the primary: %w", err)
	}
	program := filepath.Join(filepath.Dir(postgres), "pg_basebackup")
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("copy the primary: %w beside %s", ErrNoBasebackup, postgres)
	}
	args := []string{
		"--pgdata=" + target, "--host=" + primary.socketDir, "--port=" + strconv.Itoa(primary.port), "--username=" + superuser,
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-password",
	}
	if s.cfg.Ephemeral {
		args = append(args, "--no-sync")
	}
	if err := s.folder.tool(ctx, filepath.Dir(target), program, args...); err != nil {
		return err
	}
	// The copy has the primary's role, with its password.
	if err := os.WriteFile(s.folder.password(), []byte(primary.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep PostgreSQL's password: %w", err)
	}
	return nil
}

// Promote makes a standby a primary, and returns when it takes writes. It does not touch the
// server that it has followed: that one must be down, or there are two.
func (s *Server) Promote(ctx context.Context) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	return s.query(ctx, "postgres", func(ctx context.Context, conn *pgx.Conn) error {
		var done bool
		if err := conn.QueryRow(ctx, "SELECT pg_promote(true, 60)").Scan(&done); err != nil {
			return fmt.Errorf("promote PostgreSQL: %w", err)
		}
		if !done {
			return errors.New("promote PostgreSQL: it does not take writes after 60 s")
		}
		return nil
	})
}
