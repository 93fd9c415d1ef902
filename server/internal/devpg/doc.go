// Package devpg is the private PostgreSQL of `leasehold dev` and of the tests:
// it finds the server's binaries, makes a data folder, runs the server as a
// child process and ends it.
//
// It may import the standard library and pgx, and nothing of ours.
//
// # What stands in a data folder
//
//	leasehold.lock    flock held by the owning process; says who it is
//	password          of the role that URL logs in with; mode 0600
//	pgdata/           PostgreSQL's own folder, 0700, owned by its user
//	run/              the UNIX socket, if the path is short enough for one
//	postgres.log      the server's log since the last start (.1: the one before)
//
// # Invariants
//
//   - One process owns a data folder. The lock is the kernel's, so that it ends
//     with its owner, however the owner ends.
//   - PostgreSQL never outlives its owner for long: on Linux the kernel ends it,
//     elsewhere the next start on the folder does.
//   - No second server is started on a folder while a process of an earlier one
//     lives, and one that somebody else started is never touched.
//   - A server counts as started when postmaster.pid names our own child as
//     ready and a query was answered: being able to connect proves neither.
//   - It listens on 127.0.0.1 (with a password) and on a socket in a folder that
//     only its own user can enter, and nowhere else.
//   - What was committed survives kill -9 of either process: fsync and
//     synchronous_commit are left on unless Config.Settings says otherwise.
//
// PostgreSQL refuses to run as root. When we are root, it runs as the user
// postgres, else nobody, who must be able to reach the data folder.
package devpg
