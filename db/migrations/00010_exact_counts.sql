-- +goose Up

-- What a statement was to change, it has changed, or the transaction fails, and with it the COMMIT
-- that was sent together with the statement. LH001 is ours: rows that were locked were not as they
-- were read.
-- +goose StatementBegin
CREATE FUNCTION exactly(changed bigint, wanted integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF changed <> wanted THEN
        RAISE EXCEPTION '% rows of %', changed, wanted USING ERRCODE = 'LH001';
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION exactly(bigint, integer);
