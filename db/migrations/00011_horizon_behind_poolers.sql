-- +goose Up

-- As before, but a session also counts where a pooler has put its client's address behind the name:
-- PgBouncer's application_name_add_host gives each a name of its own, "name - host:port". Without
-- that no session saw another's transaction.
CREATE OR REPLACE VIEW horizons AS
SELECT GREATEST(now() - interval '45 seconds', LEAST(now() - interval '100 milliseconds', (
        SELECT min(CASE WHEN a.backend_start IS NULL OR a.state = 'disabled' THEN '-infinity' ELSE a.xact_start END)
        FROM pg_catalog.pg_stat_activity a
        WHERE a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
          AND split_part(a.application_name, ' - ', 1) = split_part(current_setting('application_name'), ' - ', 1)
          AND a.pid <> pg_backend_pid())))::timestamptz AS horizon,
    pg_postmaster_start_time()::timestamptz AS server_started;

-- +goose Down
CREATE OR REPLACE VIEW horizons AS
SELECT GREATEST(now() - interval '45 seconds', LEAST(now() - interval '100 milliseconds', (
        SELECT min(CASE WHEN a.backend_start IS NULL OR a.state = 'disabled' THEN '-infinity' ELSE a.xact_start END)
        FROM pg_catalog.pg_stat_activity a
        WHERE a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
          AND a.application_name = current_setting('application_name') AND a.pid <> pg_backend_pid())))::timestamptz AS horizon,
    pg_postmaster_start_time()::timestamptz AS server_started;
