-- SQL that SQLite and PostgreSQL both speak. Times are nanoseconds since 1970.

-- Whose journals are known. Whoever appends changes the row of its journal first and so holds a lock until the end of its
-- transaction: batches of one journal come one after the other.
CREATE TABLE run_journals (
    id TEXT NOT NULL PRIMARY KEY,
    identity TEXT NOT NULL,
    executor TEXT NOT NULL,
    batch_end BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
);

-- A run is one row, however often it is handed in: its id, when it got it, and the journal that it is in. What is in the
-- columns is for finding it; texts that are too long for an index are there as their hash.
CREATE TABLE run_records (
    accepted_at BIGINT NOT NULL,
    run_id TEXT NOT NULL,
    journal_id TEXT NOT NULL,
    identity TEXT NOT NULL,
    skill TEXT NOT NULL,
    agent TEXT NOT NULL,
    executor TEXT NOT NULL,
    caller TEXT NOT NULL,
    outcome BIGINT NOT NULL,
    record BYTEA NOT NULL,
    PRIMARY KEY (accepted_at, run_id, journal_id)
);

CREATE INDEX run_records_run ON run_records (run_id, accepted_at);
CREATE INDEX run_records_skill ON run_records (skill, accepted_at);
CREATE INDEX run_records_agent ON run_records (agent, accepted_at);
CREATE INDEX run_records_executor ON run_records (executor, accepted_at);
CREATE INDEX run_records_caller ON run_records (caller, accepted_at);
CREATE INDEX run_records_outcome ON run_records (outcome, accepted_at);

-- A label is a hash of its name and value.
CREATE TABLE run_labels (
    label TEXT NOT NULL,
    accepted_at BIGINT NOT NULL,
    run_id TEXT NOT NULL,
    journal_id TEXT NOT NULL,
    PRIMARY KEY (label, accepted_at, run_id, journal_id)
);

CREATE INDEX run_labels_age ON run_labels (accepted_at);
