-- SQL that SQLite and PostgreSQL both speak. Times are milliseconds since 1970, digests lower-case hex.

-- One row. Whoever changes an approval adds one here first and so holds a lock until the end of its transaction:
-- changes come one after the other, and their numbers are in the order in which others see them.
CREATE TABLE approval_clock (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    value BIGINT NOT NULL
);

INSERT INTO approval_clock (id, value) VALUES (1, 0);

CREATE TABLE approvals (
    id TEXT NOT NULL PRIMARY KEY,
    changed BIGINT NOT NULL,
    agent TEXT NOT NULL,
    skill TEXT NOT NULL,
    class TEXT NOT NULL,
    digest TEXT NOT NULL,
    -- They may hold secrets: here only while the approval is pending.
    args_json TEXT CHECK (args_json IS NULL OR state = 'pending'),
    args_sha256 TEXT NOT NULL,
    reason TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    requested_for TEXT NOT NULL,
    request_id TEXT,
    request_sha256 TEXT NOT NULL,
    signatures_required BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'rejected', 'expired', 'consumed')),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    run_id TEXT CHECK ((run_id IS NOT NULL) = (state = 'consumed')),
    executor TEXT CHECK ((executor IS NOT NULL) = (state = 'consumed')),
    UNIQUE (requested_by, request_id)
);

CREATE INDEX approvals_changed ON approvals (changed, id);
CREATE INDEX approvals_requested_by ON approvals (requested_by, id);
CREATE INDEX approvals_open ON approvals (expires_at) WHERE state IN ('pending', 'approved');

CREATE TABLE approval_signatures (
    approval_id TEXT NOT NULL REFERENCES approvals (id),
    signer TEXT NOT NULL,
    approve BIGINT NOT NULL CHECK (approve IN (0, 1)),
    comment TEXT NOT NULL,
    signed_at BIGINT NOT NULL,
    PRIMARY KEY (approval_id, signer)
);
