"""`pipeline verify`: read everything again and compare it with what the receipts say; or compare two corpora."""
