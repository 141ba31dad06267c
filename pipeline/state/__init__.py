"""What a corpus holds: receipts, the ledgers they are folded into, views of them, and the books."""
