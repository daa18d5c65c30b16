-- The journal in which the executor remembers the run that used the approval: another one does not know whether it was made.
ALTER TABLE approvals ADD COLUMN journal TEXT;
