"""The claims ledger and the checks that decide it."""
