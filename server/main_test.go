package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/testdb"
)

// TestMain puts the program `leasehold` into PATH: this test binary under another name.
func TestMain(m *testing.M) {
	testscript.Main(clean{m}, map[string]func(){"leasehold": main})
}

// clean runs the tests without the settings of the environment, which are not what is tested.
type clean struct{ m *testing.M }

func (c clean) Run() int {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		ours := strings.HasPrefix(name, "LEASEHOLD_") && name != devpg.EnvBin && name != "LEASEHOLD_FULL"
		if ours || strings.HasPrefix(name, "OTEL_") {
			_ = os.Unsetenv(name)
		}
	}
	return testdb.Leakless(c.m.Run())
}

// TestScripts runs testdata/script. Each script has an empty database, $DATABASE_URL; the
// command sql runs statements there.
func TestScripts(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	var n atomic.Int32
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			database, err := createDatabase(server.URL(), fmt.Sprintf("script%d", n.Add(1)))
			if err != nil {
				return err
			}
			env.Setenv("DATABASE_URL", database)
			env.Setenv("PASSWORD", password(database))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sql": func(script *testscript.TestScript, _ bool, args []string) {
				script.Check(execSQL(script.Getenv("DATABASE_URL"), strings.Join(args, " ")))
			},
		},
	})
}

func password(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		return ""
	}
	text, _ := u.User.Password()
	return text
}

// startPostgres runs a PostgreSQL until the end of the test.
func startPostgres(t *testing.T) *devpg.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := devpg.Start(ctx, devpg.Config{Ephemeral: true})
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	return server
}

// createDatabase returns the URL of a new database.
func createDatabase(server, name string) (string, error) {
	if err := execSQL(server, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("read the server's URL: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

func execSQL(database, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
