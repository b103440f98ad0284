-- The same text for SQLite and PostgreSQL. Times are microseconds since 1970; ids are ordered by creation.
CREATE TABLE cantle_files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    filename TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE,
    mime_type TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    public_url TEXT,
    created_at_us BIGINT NOT NULL,
    run TEXT,
    metadata TEXT NOT NULL
);
CREATE INDEX cantle_files_by_owner ON cantle_files (owner, id);
-- Sums of the above, changed in the same transactions, so that a quota costs one row.
CREATE TABLE cantle_file_usage (
    owner TEXT PRIMARY KEY,
    files BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
